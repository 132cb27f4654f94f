"""Manager and agent over a stream on which anything may happen: each attempt starts at most once,
and both sides come to agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.agent.attempts import Phase
from retinue.manager.domain.session.states import SessionState
from retinue.manager.store.postgres.database import StoreUnavailable
from tests.link.memory_agent import MemoryAgent
from tests.link.memory_manager import Leader, MemoryStore
from tests.link.virtual_time import run
from tests.link.wire import Fault, Wire
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from retinue.manager.domain.session.attempts import NodeReport

COMMANDS = (("true",), ("sh", "-c", "exit 3"), ())
"""One that succeeds, one that fails, one that runs until it is stopped."""
ACTIONS = (
    "place",
    "terminate",
    "end",
    "cut",
    "restart the agent",
    "another leads",
    "commits fail",
    "commits succeed and their answers are lost",
)
Action: TypeAlias = tuple[str, int]

actions = st.lists(
    st.tuples(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), st.sampled_from([0.0, 0.03, 0.3, 2.0])),
    max_size=12,
)
faults = st.dictionaries(
    st.tuples(st.sampled_from(["down", "up"]), st.integers(0, 40)), st.sampled_from(list(Fault)), max_size=12
)


@dataclass
class World:
    """A node, a store, and the managers that have led since."""

    agent: MemoryAgent
    store: MemoryStore
    wire: Wire
    leaders: list[Leader] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)

    def lead(self) -> None:
        """Another manager leads from now on; the one before is not notified."""
        self.leaders.append(Leader(self.store, self.wire, len(self.leaders) + 1))
        self.leaders[-1].start()

    def place(self, *command: str) -> str:
        """Places another session."""
        self.placed.append(self.store.place(len(self.placed) + 1, *command))
        return self.placed[-1]

    async def restart_agent(self) -> None:
        """The agent's process dies, and is started again."""
        self.wire.cut()
        await self.agent.kill()
        await self.agent.start()

    def settled(self) -> bool:
        """Returns whether manager and agent agree on everything, with nothing left to do."""
        desired = self.store.desired(None).attempts
        running = all(self.store.state(attempt_id) is SessionState.RUNNING for attempt_id in desired)
        phases = {attempt_id: attempt.phase for attempt_id, attempt in self.agent.attempts.items()}
        return running and phases == dict.fromkeys(desired, Phase.RUNNING)

    def check(self) -> None:
        """Asserts what holds at any time, whatever happened."""
        assert not self.early, "forgotten before its end was committed"
        for attempt_id in self.placed:
            assert self.agent.journal.started[attempt_id] <= 1
            assert self.agent.journal.created[attempt_id] <= 1
            moves = self.store.moves(attempt_id)
            assert len(moves) == len(set(moves)), "a report was applied twice"
        assert [stream.failure for stream in self.wire.streams if stream.failure] == []
        for stream in self.wire.streams:
            reports = {
                message.report.sequence: message.report for message in stream.received if message.HasField("report")
            }
            for request in stream.written:
                if request.HasField("ack"):
                    assert request.ack.sequence in reports


@contextlib.asynccontextmanager
async def world(faults: dict[tuple[str, int], Fault] | None = None) -> AsyncIterator[World]:
    """A node and a leader."""
    with tempfile.TemporaryDirectory() as directory:
        agent = MemoryAgent(Path(directory))
        made = World(agent, MemoryStore(), Wire(agent.serve, faults))
        agent.journal.on_remove = lambda attempt_id: (
            None if made.store.has_end(attempt_id) else made.early.append(attempt_id)
        )
        await agent.start()
        made.lead()
        try:
            yield made
        finally:
            for leader in made.leaders:
                await leader.stop()
            made.wire.cut()
            await agent.kill()


async def bring_to_rest(there: World, *, heal: bool = True) -> None:
    """Lets nothing go wrong any more, and waits until both sides agree."""
    if heal:
        there.wire.heal()
    # A quarantine may take 300 s.
    await eventually(there.settled, seconds=900)
    there.check()


def fail(times: int) -> Callable[[Sequence[NodeReport]], None]:
    """Returns what so many commits fail with."""
    left = [times]

    def refuse(_: Sequence[NodeReport]) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise StoreUnavailable("the database is away")

    return refuse


async def do(there: World, action: Action) -> None:
    """Lets something happen."""
    match action:
        case ("place", int(number)):
            there.place(*COMMANDS[number % len(COMMANDS)])
        case ("terminate", int(number)) if there.placed:
            there.store.terminate(there.placed[number % len(there.placed)])
        case ("end", int(number)) if there.placed:
            there.agent.end(there.placed[number % len(there.placed)], number)
        case ("cut", _):
            there.wire.cut()
        case ("restart the agent", _):
            await there.restart_agent()
        case ("another leads", _):
            there.lead()
        case ("commits fail", int(number)):
            there.store.before_commit = fail(number)
        case ("commits succeed and their answers are lost", int(number)):
            there.store.after_commit = fail(number)


def test_a_life_without_faults() -> None:
    async def live() -> None:
        async with world() as there:
            ids = [there.place(*command) for command in COMMANDS]
            await bring_to_rest(there)
            assert [there.store.state(key) for key in ids] == ["TERMINATED", "TERMINATED", "RUNNING"]
            assert [there.agent.journal.started[key] for key in ids] == [1, 1, 1]
            there.store.terminate(ids[2])
            await bring_to_rest(there)
            assert there.store.state(ids[2]) is SessionState.TERMINATED
            assert not there.agent.attempts

    run(live())


@given(actions, faults)
@settings(max_examples=100)
def test_whatever_happens_both_sides_come_to_agree(
    happening: list[tuple[Action, float]], faults: dict[tuple[str, int], Fault]
) -> None:
    async def live() -> None:
        async with world(faults) as there:
            there.place()
            for action, seconds in happening:
                await do(there, action)
                await asyncio.sleep(seconds)
                there.check()
            await bring_to_rest(there)
            for attempt_id in there.placed:
                there.store.terminate(attempt_id)
            await bring_to_rest(there)
            assert not there.agent.attempts
            assert all(there.store.has_end(attempt_id) for attempt_id in there.placed)

    run(live())


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("direction", ["down", "up"])
@pytest.mark.parametrize("number", range(12))
def test_one_fault_at_each_message(direction: str, number: int, fault: Fault) -> None:
    async def live() -> None:
        async with world({(direction, number): fault}) as there:
            ids = [there.place(*command) for command in COMMANDS]
            await asyncio.sleep(8.0)
            there.store.terminate(ids[2])
            await bring_to_rest(there)
            assert {there.store.state(key) for key in ids} == {SessionState.TERMINATED}
            assert [there.agent.journal.started[key] for key in ids] == [1, 1, 1]
            assert not there.agent.attempts

    run(live())
