"""Which manager an agent listens to: that of the newest stream and the highest term, which speaks in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from typing import Any

import grpc
import pytest

from retinue.agent.api import sync
from retinue.agent.api.sync import SILENT_INTERVALS
from retinue.agent.attempts import Phase
from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.agent.manager_side import INCARNATION, attempt
from tests.link.dialled_agent import A1, A2, K1, K2, Node, error_of, on_node, until_removed
from tests.link.memory_agent import AGENT

RUNNING = pb.ATTEMPT_STATE_RUNNING


async def refused(node: Node, **hello: Any) -> tuple[grpc.StatusCode, str]:
    """Returns why a manager is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.converse(**hello)
    return caught.value.code(), (caught.value.details() or "").partition(":")[0]


def test_steps_that_are_out_of_place_end_the_stream_and_nothing_else() -> None:
    steps = (
        pb.SyncRequest(change=pb.Change(removed_attempt_ids=[A1])),
        pb.SyncRequest(ack=pb.Ack(sequence=1)),
        pb.SyncRequest(hello=pb.Hello(term=1, agent_id=AGENT, incarnation=INCARNATION)),
        pb.SyncRequest(),
        pb.SyncRequest(snapshot=pb.Snapshot(attempts=[pb.Attempt(id="../x.1", kernel_id="../x", number=1)])),
        pb.SyncRequest(snapshot=pb.Snapshot(networks=[pb.Network(session_id="no-uuid")])),
        pb.SyncRequest(snapshot=pb.Snapshot(protected_addresses=["not one"])),
    )

    async def live(node: Node) -> None:
        manager = await node.converse()
        await manager.snapshot(attempt(K1))
        await manager.until_state(A1, RUNNING)
        for step in steps:
            manager = await node.converse()
            await manager.call.write(step)
            assert await error_of(manager) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        manager = await node.converse()
        await manager.snapshot(attempt(K1))
        await manager.call.write(pb.SyncRequest(ack=pb.Ack(sequence=99)))
        assert await error_of(manager) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert node.phase(A1) is Phase.RUNNING

    on_node(live)


def test_a_second_stream_ends_the_first_which_is_not_listened_to_any_more() -> None:
    async def live(node: Node) -> None:
        first = await node.converse(term=5)
        await first.snapshot(attempt(K1))
        await first.until_state(A1, RUNNING)
        second = await node.converse(term=5)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await first.change(attempts=[attempt(K1, goal=pb.GOAL_STOPPED)])
        assert await error_of(first) == (grpc.StatusCode.ABORTED, "UNAVAILABLE")
        await second.snapshot(attempt(K1))
        beats = second.heartbeats
        await second.until(lambda: second.heartbeats > beats + 3)
        assert node.phase(A1) is Phase.RUNNING

    on_node(live)


@pytest.mark.parametrize("hops", range(20))
def test_what_is_on_its_way_in_a_stream_is_not_applied_once_another_took_its_place(
    hops: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The message arrives so many steps of the loop before or behind the hello of the other stream."""

    async def live(node: Node) -> None:
        first = await node.converse()
        await first.snapshot(attempt(K1))
        await first.until_state(A1, RUNNING)
        opening = asyncio.create_task(node.converse(term=2))
        for _ in range(hops):
            await asyncio.sleep(0)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await first.change(attempts=[attempt(K1, goal=pb.GOAL_STOPPED)])
        await opening

    with caplog.at_level(logging.DEBUG, sync.__name__):
        on_node(live)
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert "wanted" not in said[said.index("a manager of term 2 is connected") :]


@pytest.mark.parametrize("restarts", [False, True])
def test_an_older_term_is_refused_and_harms_nothing(restarts: bool) -> None:
    async def live(node: Node) -> None:
        newest = await node.converse(term=5)
        await newest.snapshot(attempt(K1))
        await newest.until_state(A1, RUNNING)
        if restarts:
            await node.restart()
        assert await refused(node, term=4) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_TERM")
        if restarts:
            newest = await node.converse(term=5)
        beats = newest.heartbeats
        await newest.until(lambda: newest.heartbeats > beats)
        assert node.phase(A1) is Phase.RUNNING
        # A later one takes over.
        await node.converse(term=6)
        assert await error_of(newest) == (grpc.StatusCode.ABORTED, "UNAVAILABLE")

    on_node(live)


def test_another_incarnation_counts_its_own_terms_and_ends_only_what_it_names() -> None:
    async def live(node: Node) -> None:
        lost = await node.converse(term=9)
        await lost.snapshot(attempt(K1), attempt(K2))
        for key in (A1, A2):
            await lost.until_state(key, RUNNING)
        restored = str(uuid.uuid4())
        manager = await node.converse(term=1, incarnation=restored)
        assert {status.state for status in manager.statuses.values()} == {RUNNING}
        await manager.snapshot(attempt(K1), names_others=False)
        beats = manager.heartbeats
        await manager.until(lambda: manager.heartbeats > beats + 3)
        assert node.phase(A2) is Phase.RUNNING
        for _ in range(2):
            assert await refused(node, term=10) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_INCARNATION")
            await node.restart()
        manager = await node.converse(term=1, incarnation=restored)
        await manager.snapshot(attempt(K1), names_others=False)
        await manager.change(removed_attempt_ids=[A2])
        await until_removed(manager, A2)
        assert node.phase(A1) is Phase.RUNNING
        assert await refused(node, incarnation="no UUID") == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")

    on_node(live)


def test_a_manager_that_dials_another_agent_is_refused_before_its_term_counts() -> None:
    async def live(node: Node) -> None:
        stranger = node.dial()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stranger.open("another", term=7)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await node.converse(term=1)

    on_node(live)


def test_a_manager_that_is_silent_is_dropped_and_what_runs_continues() -> None:
    async def live(node: Node) -> None:
        clock = asyncio.get_running_loop().time
        manager = await node.converse(interval=2.0)
        await manager.snapshot(attempt(K1))
        await manager.until_state(A1, RUNNING)
        began = clock()
        assert await error_of(manager) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
        assert clock() - began == pytest.approx(SILENT_INTERVALS * 2.0, abs=0.5)
        assert node.phase(A1) is Phase.RUNNING
        # One that does not even say hello.
        assert await error_of(node.dial()) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")

    on_node(live)


@pytest.mark.parametrize(
    ("answered", "phase"), [("number", Phase.RUNNING), ("none", Phase.EXITED), ("later", Phase.EXITED)]
)
def test_only_a_heartbeat_that_is_answered_by_its_number_proves_contact(answered: str, phase: Phase) -> None:
    """Neither side's clock is compared: the agent counts from when it sent what the manager says it has heard."""

    async def live(node: Node) -> None:
        manager = await node.converse(interval=1.0)
        fence: Any = {"seconds": 30}
        await manager.snapshot(attempt(K1, fence_timeout=fence))
        await manager.until_state(A1, RUNNING)
        async with asyncio.timeout(120):
            for _ in range(60):
                response = await manager.read()
                if response.WhichOneof("step") == "heartbeat":
                    number = response.heartbeat.number
                    said = {"number": number, "none": 0, "later": number + 1000}[answered]
                    await manager.call.write(pb.SyncRequest(heartbeat=pb.Heartbeat(number=said)))
        assert node.phase(A1) is phase

    on_node(live)
