"""Strategies of others: the examples at work, and what comes of strategies that fail, dawdle or answer nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
from sqlalchemy import text

from retinue.manager.scheduling import custom
from retinue.strategy.v1 import strategy_service_pb2 as pb
from retinue.strategy.v1 import strategy_service_pb2_grpc as pb_grpc
from tests.integration.manager.scheduler.world import World, check, kernel, row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import pytest

    from retinue.manager.store.postgres.database import Database

EXAMPLES = Path(__file__).parents[4] / "examples"


async def configure(database: Database, session: str, agent: str, **options: str) -> None:
    async with database.transaction() as tx:
        await tx.execute(
            text("""
                UPDATE resource_group SET session_strategy = :session, agent_strategy = :agent,
                    options = jsonb_object(CAST(:keys AS text[]), CAST(:values AS text[]))
            """),
            {
                "session": session,
                "agent": agent,
                "keys": [name.replace("_", "-") for name in options],
                "values": list(options.values()),
            },
        )


# Milliseconds that no answer takes, on a busy machine either: as many as may be given.
PATIENT = "30000"


@contextlib.asynccontextmanager
async def program(*command: str) -> AsyncIterator[str]:
    """A server of its own, which prints its port."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


class Scripted(pb_grpc.StrategyServiceServicer):
    """Answers as a test says."""

    def __init__(self, order: Callable[[Any], Any], place: Callable[[Any], Any]) -> None:
        self.order, self.place = order, place

    async def OrderSessions(self, request: Any, context: Any) -> Any:
        answer = self.order(request)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def PlaceSessions(self, request: Any, context: Any) -> Any:
        answer = self.place(request)
        return await answer if asyncio.iscoroutine(answer) else answer


@contextlib.asynccontextmanager
async def scripted(servicer: Scripted) -> AsyncIterator[str]:
    server = grpc.aio.server()
    pb_grpc.add_StrategyServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def placed(database: Database, *sessions: Any) -> list[str]:
    """Agents of the sessions' main kernels."""
    return [(await row(database, session)).agent_id or "" for session in sessions]


async def test_examples_decide(database: Database) -> None:
    async with World(database, 1).running() as world:
        async with program("node", str(EXAMPLES / "external-strategy" / "server.js"), "0") as address:
            await configure(database, "external", "external", address=address, deadline_ms=PATIENT)
            gang = await world.submit(**{**kernel("3"), "cluster_size": 3, "single_node": False})
            one = await world.submit(**kernel("2"))
            await world.schedule()
            assert await placed(database, one) == ["n0"]
            waiting = await row(database, gang)
            assert (waiting.state, waiting.reason) == ("PENDING", "STRATEGY_DECLINED"), "the smaller one went first"
            await world.end(gang)
        async with program(sys.executable, str(EXAMPLES / "external-strategy" / "server.py"), "0") as address:
            await configure(database, "external", "dispersed", address=address, deadline_ms=PATIENT)
            another = await world.submit(**kernel("2"))
            await world.schedule()
            assert await placed(database, another) == ["n1"]
        await world.come_to_rest()
        await check(database)


async def test_a_python_strategy_is_an_entry_point(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What installing the example does, without installing it."""
    project = tomllib.loads((EXAMPLES / "python-strategy" / "pyproject.toml").read_text())["project"]
    information = tmp_path / "retinue_example_strategies-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (information / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES / "python-strategy")
    custom.installed.cache_clear()
    try:
        async with World(database, 2).running() as world:
            await configure(database, "smallest-first", "aligned", size_slot="cpu", session_fallback="fifo")
            large = [await world.submit(**kernel("3")) for _ in range(3)]
            small = [await world.submit(**kernel("2")) for _ in range(2)]
            await world.schedule()
            assert set(await placed(database, *small)) == {"n0", "n1"}, "the freest agent is aligned best"
            assert await placed(database, *large) == ["n2", "", ""]
            await check(database)
            await world.come_to_rest()
    finally:
        custom.installed.cache_clear()


async def test_failures_fall_back_and_are_reported(database: Database) -> None:
    async def dawdle(_request: Any) -> Any:
        await asyncio.Event().wait()

    def everything(request: Any) -> Any:
        return pb.OrderSessionsResponse(session_ids=[session.id for session in request.sessions])

    def refuse_all(_request: Any) -> Any:
        return pb.PlaceSessionsResponse()

    cases: list[tuple[str, Callable[[Any], Any], str]] = [
        ("late", dawdle, "DEADLINE_EXCEEDED"),
        ("strangers", lambda _: pb.OrderSessionsResponse(session_ids=["nobody"]), "sessions that do not wait"),
        ("left out", lambda _: pb.OrderSessionsResponse(), "left out sessions"),
        ("fails", lambda _: 1 / 0, "UNKNOWN"),
    ]
    async with World(database, 3).running() as world:
        huge = await world.submit(**kernel("3.5"))
        blocked = [await world.submit(**kernel("4")) for _ in range(3)]
        for name, order, said in cases:
            async with scripted(Scripted(order, refuse_all)) as address:
                deadline = "300" if order is dawdle else PATIENT
                await configure(database, "external", "concentrated", address=address, deadline_ms=deadline)
                await world.schedule()
                assert (await row(database, huge)).state != "PENDING", name
                messages = [(await row(database, session)).message for session in blocked]
                assert any("drf decided instead" in message and said in message for message in messages), (
                    name,
                    messages,
                )
        await configure(
            database, "drf", "external", address="127.0.0.1:9", agent_fallback="dispersed", deadline_ms=PATIENT
        )
        late = await world.submit(**kernel("4"))
        await world.schedule()
        assert "external agent strategy failed (UNAVAILABLE" in (await row(database, late)).message
        async with scripted(Scripted(everything, refuse_all)) as address:
            await configure(database, "external", "external", address=address, deadline_ms=PATIENT)
            await world.schedule()
            assert "decided instead" not in (await row(database, late)).message
        await world.come_to_rest()
        await check(database)


async def test_choices_that_cannot_be_are_refused(database: Database) -> None:
    agents: list[str] = []

    def place(request: Any) -> Any:
        # The same for all.
        return pb.PlaceSessionsResponse(
            placements=[pb.Placement(session_id=session.id, agent_ids=agents) for session in request.sessions]
        )

    async with World(database, 4).running() as world:
        await configure(database, "fifo", "concentrated")
        full = await world.submit(**kernel("4"))
        await world.schedule()
        assert await placed(database, full) == ["n0"]
        async with scripted(Scripted(lambda _: pb.OrderSessionsResponse(), place)) as address:
            await configure(database, "drf", "external", address=address, deadline_ms=PATIENT)
            for choice, said in (
                (["elsewhere"], "which is not here"),
                (["n0"], "an agent is given that has no room"),
                (["n1", "n1"], "2 agents are given for 1 kernels"),
                (["n2"], ""),
            ):
                agents[:] = choice
                session = await world.submit(**kernel("3"))
                await world.schedule()
                found = await row(database, session)
                if said:
                    assert (found.state, found.reason) == ("PENDING", "STRATEGY_DECLINED")
                    assert said in found.message
                else:
                    assert (found.state, found.agent_id) == ("SCHEDULED", "n2")
                await world.end(session)
        await world.come_to_rest()
        await check(database)
