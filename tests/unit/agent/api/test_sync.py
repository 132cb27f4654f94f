"""An agent's stream with a manager that behaves, or does not: what may be sent twice, late or never."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.agent.api.sync import ACK_TIMEOUT
from retinue.agent.attempts import Phase
from retinue.agent.runtime.contract import RuntimeStatus
from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.agent.manager_side import Conversation, attempt
from tests.link.dialled_agent import A1, A2, K1, K2, Node, error_of, on_node, until_removed
from tests.link.wire import ROOM, Fault, Wire
from tests.support.eventually import eventually

RUNNING, EXITED, FAILED = pb.ATTEMPT_STATE_RUNNING, pb.ATTEMPT_STATE_EXITED, pb.ATTEMPT_STATE_FAILED


async def until_known(manager: Conversation, attempt_id: str) -> None:
    """Takes messages in until the attempt is reported."""
    await manager.until(lambda: attempt_id in manager.statuses)


def test_an_end_is_kept_until_it_is_acked_and_not_desired() -> None:
    async def live(node: Node) -> None:
        manager = await node.converse()
        manager.auto_ack = False
        await manager.snapshot(attempt(K1, "true"))
        await manager.until_state(A1, EXITED)
        await manager.change(removed_attempt_ids=[A1])
        beats = manager.heartbeats
        await manager.until(lambda: manager.heartbeats > beats + 3)
        assert A1 in node.attempts, "not acked"
        await manager.ack()
        await until_removed(manager, A1)
        assert A1 not in node.attempts

    on_node(live)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_end_that_was_never_acked_comes_with_each_stream_until_it_is(restarts: bool) -> None:
    async def live(node: Node) -> None:
        manager = await node.converse()
        manager.auto_ack = False
        await manager.snapshot(attempt(K1, "sh", "-c", "exit 3"))
        await manager.until_state(A1, EXITED)
        for _ in range(3):
            if restarts:
                await node.restart()
            else:
                manager.close()
            manager = await node.converse()
            manager.auto_ack = False
            assert (manager.statuses[A1].state, manager.statuses[A1].exit_code) == (EXITED, 3)
            # That the welcome had it does not settle it: a report says it again.
            manager.statuses.clear()
            await manager.snapshot()
            await manager.change(removed_attempt_ids=[A1])
            await until_known(manager, A1)
            assert A1 in node.attempts
        await manager.ack()
        await until_removed(manager, A1)
        assert (node.journal.started[A1], node.journal.removed[A1]) == (1, 1)

    on_node(live)


def test_a_report_waits_for_the_ack_of_the_one_before_but_not_for_long() -> None:
    async def live(node: Node) -> None:
        clock = asyncio.get_running_loop().time
        manager = await node.converse(interval=60.0)
        manager.auto_ack = False
        await manager.snapshot(attempt(K1))
        times = []
        for _ in range(3):
            # Accepted or held, running, stopping or ended: each in a report of its own.
            while (await manager.read()).WhichOneof("step") != "report":
                pass
            times.append(clock())
            if len(times) == 2:
                await manager.change(attempts=[attempt(K1, goal=pb.GOAL_STOPPED)])
        assert times[2] - times[1] >= ACK_TIMEOUT - 0.001
        assert times[2] - times[0] <= 3 * ACK_TIMEOUT

    on_node(live)


def test_the_desired_set_may_come_again_and_starts_nothing_twice() -> None:
    async def live(node: Node) -> None:
        for _ in range(3):
            manager = await node.converse()
            await manager.snapshot(attempt(K1), attempt(K2, "true"))
            await manager.until_state(A1, RUNNING)
            await manager.until_state(A2, EXITED)
            for _ in range(2):
                await manager.change(attempts=[attempt(K1), attempt(K2, "true")])
        await asyncio.sleep(2)
        assert node.journal.started == {A1: 1, A2: 1}
        # In one stream, it comes once.
        await manager.snapshot(attempt(K1))
        assert await error_of(manager) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert node.phase(A1) is Phase.RUNNING

    on_node(live)


def test_changes_in_the_wrong_order_start_nothing_a_second_time() -> None:
    async def live(node: Node) -> None:
        manager = await node.converse()
        await manager.snapshot(attempt(K1, "true"))
        await manager.until_state(A1, EXITED)
        await manager.change(removed_attempt_ids=[A1])
        await until_removed(manager, A1)
        # What was sent before, and comes behind.
        await manager.change(attempts=[attempt(K1, "true")])
        assert (await manager.until_state(A1, FAILED)).reason == "ALREADY_REMOVED"
        assert node.journal.started[A1] == 1

    on_node(live)


def test_acks_that_come_again_or_too_late_settle_nothing_else() -> None:
    async def live(node: Node) -> None:
        manager = await node.converse()
        manager.auto_ack = False
        await manager.snapshot(attempt(K1, "true"))
        await manager.until_state(A1, EXITED)
        await manager.ack()
        before = manager.sequence
        await manager.change(attempts=[attempt(K2, "true")], removed_attempt_ids=[A1])
        await manager.until_state(A2, EXITED)
        await manager.change(removed_attempt_ids=[A2])
        for sequence in (before, 1, 0, -5, before):
            await manager.call.write(pb.SyncRequest(ack=pb.Ack(sequence=sequence)))
        await asyncio.sleep(5)
        assert (A1 in node.attempts, A2 in node.attempts) == (False, True)

    on_node(live)


@pytest.mark.parametrize("what", ["runtimes", "capacity"])
def test_a_stream_ends_when_what_the_node_offers_changes_and_the_next_one_begins_with_it(what: str) -> None:
    async def live(node: Node) -> None:
        manager = await node.converse(interval=60.0)
        await manager.snapshot(attempt(K1))
        await manager.until_state(A1, RUNNING)
        if what == "runtimes":
            node.runtimes = [*node.runtimes, RuntimeStatus("docker", available=True)]
        else:
            node.capacity = node.capacity | {"cpu": 3_000}
        assert node.sync is not None
        node.sync.reconciler.changed()
        began = asyncio.get_running_loop().time()
        assert await error_of(manager) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
        assert asyncio.get_running_loop().time() - began < 60, "one that is silent would be dropped later"
        following = await node.converse()
        assert list(following.welcome.available_runtimes) == [status.name for status in node.runtimes]
        assert dict(following.welcome.capacity) == node.capacity
        assert node.phase(A1) is Phase.RUNNING

    on_node(live)


def test_each_stream_begins_with_the_offer_of_its_own_time() -> None:
    async def live(node: Node) -> None:
        for cpu in (3_000, 2_000):
            # Amounts that are gone are not carried over from the welcome before.
            node.capacity = {"cpu": cpu} | ({"cuda.device": 1_000} if cpu == 3_000 else {})
            manager = await node.converse()
            assert dict(manager.welcome.capacity) == node.capacity
            assert list(manager.welcome.available_runtimes) == ["process"]
            assert not manager.welcome.attempts
            manager.close()

    on_node(live)


def test_a_manager_that_does_not_read_is_sent_no_more_than_there_is_room_for_and_then_what_is_newest() -> None:
    async def live(node: Node) -> None:
        manager = await node.converse(interval=60.0)
        await manager.snapshot()
        last = 40
        for number in range(1, last + 1):
            await manager.change(
                attempts=[attempt(K1 if number % 2 else K2, "true") if number < 3 else attempt(f"k{number}", "true")]
            )
            await asyncio.sleep(1)
        stream = node.wire.streams[-1]
        await eventually(lambda: len(node.attempts) == last)
        unread = len(stream._responses._unread)  # noqa: SLF001
        assert unread <= ROOM
        await manager.until(lambda: len(manager.statuses) == last)
        assert {status.state for status in manager.statuses.values()} == {EXITED}
        # Those that ended meanwhile share reports.
        assert manager.sequence <= ROOM + 3

    on_node(live)


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_stream_that_breaks_at_any_message_is_resumed_by_the_next(direction: str, number: int) -> None:
    async def live(node: Node) -> None:
        node.wire = Wire(node.serve, {(direction, number): Fault.BREAK_BEFORE})
        for _ in range(3):
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                manager = await node.converse()
                await manager.snapshot(attempt(K1, "true"))
                # Failed, if it was forgotten already: it does not start again.
                await manager.until_state(A1, EXITED, FAILED)
                await manager.change(removed_attempt_ids=[A1])
                await until_removed(manager, A1)
                break
        assert A1 not in node.attempts
        assert node.journal.started[A1] == 1

    on_node(live)


@dataclass
class AnyManager:
    """Says anything in any order, over any streams; knows which ends it has acked."""

    node: Node
    settled: set[str] = field(default_factory=set)
    early: list[str] = field(default_factory=list)
    manager: Conversation | None = None
    ends: dict[int, set[str]] = field(default_factory=dict)

    def removing(self, attempt_id: str) -> None:
        """Takes note of an attempt that is forgotten too early."""
        if attempt_id not in self.settled:
            self.early.append(attempt_id)

    async def do(self, action: str, numbers: list[int]) -> None:
        """Lets something happen; a manager whose stream has ended says nothing."""
        wanted = [
            attempt(f"k{n % 3}", *COMMANDS[n // 3 % 3], goal=1 + n // 9 % 3, session_id=f"s{n % 2}") for n in numbers
        ]
        if action == "open":
            self.ends = {}
            self.manager = await self.node.converse(interval=60.0)
            self.manager.auto_ack = False
        elif action == "restart":
            await self.node.restart()
        elif self.manager is not None:
            match action:
                case "snapshot":
                    await self.manager.snapshot(*wanted)
                case "change":
                    await self.manager.change(attempts=wanted)
                case "remove":
                    await self.manager.change(removed_attempt_ids=[item.id for item in wanted])
                case "read":
                    await self.read()
                case "ack":
                    await self.ack(max(self.ends, default=0))
                case "ack an older one":
                    await self.ack(max(self.ends, default=0) - 1)
                case "close":
                    self.manager.close()

    async def read(self) -> None:
        """Reads what is there."""
        assert self.manager is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while True:
                    response = await self.manager.read()
                    if response.WhichOneof("step") == "report":
                        ended = {item.attempt_id for item in response.report.attempts if item.state in {EXITED, FAILED}}
                        self.ends[response.report.sequence] = ended

    async def ack(self, sequence: int) -> None:
        """Acks all up to a report."""
        assert self.manager is not None
        for number, ended in self.ends.items():
            if number <= sequence:
                self.settled |= ended
        await self.manager.call.write(pb.SyncRequest(ack=pb.Ack(sequence=sequence)))


COMMANDS = ((), ("true",), ("sh", "-c", "exit 3"))
SAID = ("open", "snapshot", "change", "remove", "read", "ack", "ack an older one", "close", "restart")


@given(st.lists(st.tuples(st.sampled_from(SAID), st.lists(st.integers(0, 26), max_size=4)), max_size=30))
@settings(max_examples=200)
def test_whatever_a_manager_says_nothing_starts_twice_or_is_forgotten_before_its_ack(
    said: list[tuple[str, list[int]]],
) -> None:
    async def live(node: Node) -> None:
        manager = AnyManager(node)
        node.journal.on_remove = manager.removing
        for action, numbers in [("open", []), *said]:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await manager.do(action, numbers)
            await asyncio.sleep(0.1)
        assert not manager.early
        # A manager that does as it should brings the node to rest.
        node.journal.on_remove = lambda _: None
        last = await node.converse()
        await last.snapshot()
        await last.until(lambda: not node.attempts and not last.statuses)
        assert all(times <= 1 for times in node.journal.started.values())

    on_node(live)
