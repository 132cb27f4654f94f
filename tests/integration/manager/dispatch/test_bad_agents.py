"""An agent that sends nonsense costs itself only: the leader's term continues, and others are placed as before."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch import agent_link
from retinue.manager.dispatch.convert import Conditions, Message, Rejected, parse
from retinue.manager.dispatch.reports import Reports
from retinue.manager.domain.session.attempts import NodeFacts, NodeReport
from tests.integration.manager.leading import FakeAgent, count, leading
from tests.integration.manager.reporting_node import TERM, enrol
from tests.integration.manager.rows import submit
from tests.integration.manager.scheduled_nodes import committing
from tests.support.eventually import eventually
from tests.support.fuzz import Fuzz

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.manager.store.postgres.database import Database

ODD_WELCOMES: tuple[dict[str, Any], ...] = (
    {"network_session_ids": ["not-a-uuid"]},
    {"version": "1\0"},
    {"architecture": "x86\0"},
    {"capacity": {"c\0pu": 1}},
    {"capacity": {"cpu": 2**63 - 1}},
    {"underlay_address": "not-an-address"},
    {"agent_id": "honest"},
    {
        "attempts": [
            pb.AttemptStatus(
                attempt_id="00000000-0000-0000-0000-000000000001.99999999999", state=pb.ATTEMPT_STATE_RUNNING
            )
        ]
    },
    {"attempts": [pb.AttemptStatus(attempt_id="x", state=pb.ATTEMPT_STATE_RUNNING, message="\0")]},
)


async def conditions(database: Database, agent_id: str) -> list[str]:
    async with database.transaction() as tx:
        rows = await tx.execute(text("SELECT found_conditions FROM agent WHERE id = :id"), {"id": agent_id})
        return [row["type"] for row in rows.scalar_one()]


@pytest.mark.attack("impossible-capacity")
async def test_nonsense_costs_its_agent_only(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_link, "_MIN_QUARANTINE", 0.01)
    monkeypatch.setattr(agent_link, "_MAX_QUARANTINE", 0.05)

    async def rave(agent: FakeAgent, requests: AsyncIterator[pb.SyncRequest]) -> AsyncIterator[pb.SyncResponse]:
        yield agent.welcome(**ODD_WELCOMES[agent.dialled % len(ODD_WELCOMES)])
        await anext(requests, None)
        yield pb.SyncResponse(report=pb.Report(sequence=1, removed_network_session_ids=["not-a-uuid"]))

    honest, rogue = FakeAgent("honest"), FakeAgent("rogue", rave)
    with caplog.at_level(logging.ERROR):
        async with leading(database, honest, rogue):
            for number in range(1, 4):
                await submit(database, "ann", f"s{number}", agents=("honest",), agents_strict=True)
                await eventually(partial(_running, database, number))
                await eventually(partial(_dialled, rogue, number * len(ODD_WELCOMES)))
            await eventually(partial(_has, database, "rogue", "QUARANTINED"))
            assert await conditions(database, "honest") == []
    assert honest.dialled == 1
    assert not [record for record in caplog.records if record.name.startswith("retinue.manager")]


@pytest.mark.attack("attempts-of-other-nodes")
async def test_an_agent_is_sent_what_was_placed_on_it_and_nothing_else(database: Database) -> None:
    """Whatever it says that it runs: with an attempt come its variables, and the secrets of its session."""
    snapshots: list[pb.Snapshot] = []
    placed, asked = asyncio.Event(), asyncio.Event()

    async def claim(agent: FakeAgent, requests: AsyncIterator[pb.SyncRequest]) -> AsyncIterator[pb.SyncResponse]:
        await placed.wait()
        yield agent.welcome(attempts=honest.statuses.values(), network_session_ids=[])
        async for request in requests:
            if request.WhichOneof("step") == "snapshot":
                snapshots.append(request.snapshot)
                asked.set()

    honest, curious = FakeAgent("honest"), FakeAgent("curious", claim)
    async with leading(database, honest, curious):
        await submit(database, "ann", "s1", agents=("honest",), agents_strict=True)
        await eventually(partial(_running, database, 1))
        assert honest.wanted
        placed.set()
        await asked.wait()
        assert snapshots
        assert [list(snapshot.attempts) for snapshot in snapshots] == [[]] * len(snapshots)
        assert [list(snapshot.networks) for snapshot in snapshots] == [[]] * len(snapshots)
        assert await count(database, "state = 'RUNNING'") == 1


async def _running(database: Database, number: int) -> bool:
    return await count(database, "state = 'RUNNING'") == number


async def _dialled(agent: FakeAgent, number: int) -> bool:
    return agent.dialled >= number


async def _has(database: Database, agent_id: str, condition: str) -> bool:
    return condition in await conditions(database, agent_id)


@pytest.mark.attack("message-floods")
async def test_a_flood_of_messages_is_read_slowly(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By as many as are read, the others of the fleet have a manager that does something else meanwhile."""
    monkeypatch.setattr(agent_link, "_MESSAGES_AT_ONCE", 10)
    read = 0
    parsed = agent_link.AgentLink._parsed  # noqa: SLF001  # counts what is read

    def counted(link: agent_link.AgentLink, message: pb.SyncResponse) -> Message:
        nonlocal read
        read += link.agent_id == "rogue"
        return parsed(link, message)

    monkeypatch.setattr(agent_link.AgentLink, "_parsed", counted)

    async def flood(agent: FakeAgent, requests: AsyncIterator[pb.SyncRequest]) -> AsyncIterator[pb.SyncResponse]:
        yield agent.welcome()
        await anext(requests, None)
        for number in range(1, 100_000):
            yield pb.SyncResponse(heartbeat=pb.Heartbeat(number=number))

    honest, rogue = FakeAgent("honest"), FakeAgent("rogue", flood)
    async with leading(database, honest, rogue):
        await eventually(lambda: read > 10)
        begin, before = time.monotonic(), read
        await submit(database, "ann", "s1", agents=("honest",), agents_strict=True)
        await eventually(partial(_running, database, 1))
        await asyncio.sleep(1.0)
        assert read - before <= 100.0 * (time.monotonic() - begin) + 10 + 1
    assert "agent rogue sends ever more messages" in caplog.text


async def test_pauses_grow_and_a_sound_welcome_ends_the_quarantine(database: Database) -> None:
    pauses: list[float] = []
    sane = asyncio.Event()

    async def rave(agent: FakeAgent, requests: AsyncIterator[pb.SyncRequest]) -> AsyncIterator[pb.SyncResponse]:
        yield agent.welcome(**({} if sane.is_set() else {"underlay_address": "0.0.0.0"}))  # noqa: S104  # to be refused
        async for _ in requests:
            pass

    class Quick(agent_link.AgentLink):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            async def sleep(seconds: float) -> None:
                pauses.append(seconds)
                await asyncio.sleep(0)

            super().__init__(*arguments, **named, sleep=sleep)

    rogue = FakeAgent("rogue", rave)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retinue.manager.dispatch.supervisor.AgentLink", Quick)
        async with leading(database, rogue):
            await eventually(partial(_dialled, rogue, 12))
            assert await conditions(database, "rogue") == ["QUARANTINED"]
            sane.set()
            await eventually(partial(_lacks, database, "rogue", "QUARANTINED"))
    assert max(pauses) > 150.0
    assert pauses[0] <= 1.0
    assert all(later > earlier for earlier, later in zip(pauses, pauses[2:8], strict=False))


async def _lacks(database: Database, agent_id: str, condition: str) -> bool:
    return condition not in await conditions(database, agent_id)


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_parsed_is_committed(database: Database, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    await enrol(database, ["rogue"])
    fuzz = Fuzz(seed)
    sound = [FakeAgent("rogue").welcome(), pb.SyncResponse(report=pb.Report(sequence=1))]
    sound[0].welcome.network_session_ids.append("00000000-0000-0000-0000-000000000001")
    for message in (sound[0].welcome, sound[1].report):
        status = message.attempts.add(attempt_id="00000000-0000-0000-0000-000000000001.1", state=4)
        status.image.service_ports.add(name="x")
        status.layers.add(id="x")
    reports, committed = Reports(database, TERM, lambda _: None), 0
    with caplog.at_level(logging.WARNING):
        async with committing(reports):
            for number in range(600):
                match parse("rogue", fuzz.corrupt(sound[number % 2])):
                    case NodeFacts() as facts:
                        # Another instance would be a copy, which is refused whatever it sends.
                        await reports.connected(replace(facts, instance="i"))
                    case NodeReport() as report:
                        await reports.reported(report)
                    case Conditions(found):
                        await reports.conditions_changed("rogue", found)
                    case Rejected() as rejected:
                        await reports.quarantined("rogue", rejected, 1.0)
                    case _:
                        continue
                committed += 1
    assert committed > 500
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
