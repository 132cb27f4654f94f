"""When an agent counts as not reached: after two probes in a row, and until one that succeeds."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from retinue.manager.agent_rpc.dialer import AgentNotReachedError, Dialer
from retinue.manager.agent_rpc.reach import REFUSED, TIMED_OUT, NotReached
from retinue.manager.dispatch.reachability import Reachability
from retinue.manager.domain.session.attempts import ListenerBrokenError, TermOverError
from retinue.rpc.core.reasons import AgentConditionReason
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ADDRESS = "192.0.2.1:7443"
COPY = NotReached(AgentConditionReason.COPY, "a copy")


@dataclass
class Link:
    agent_id: str = "n1"
    address: str = ADDRESS
    connected: bool = True
    refusal: NotReached | None = None


class ProbingDialer(Dialer):
    """Finds what it is told to; keeps how it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda: pytest.fail("a channel was opened"))
        self.found: NotReached | None = None
        self.wholes: list[bool] = []

    async def probe(self, agent_id: str, address: str, *, whole: bool) -> NotReached | None:
        assert (agent_id, address) == ("n1", ADDRESS)
        self.wholes.append(whole)
        return self.found

    def fails_at_once(self) -> bool:
        try:
            self.check("n1", ADDRESS)
        except AgentNotReachedError:
            return True
        return False


class World:
    """A link that is probed each time it is asked to, and hardly ever else."""

    def __init__(self) -> None:
        self.link, self.dialer = Link(), ProbingDialer()
        self.recorded: list[NotReached | None] = []
        self.broken: Exception | None = None
        self.reachability = Reachability(self.link, self.dialer, self.record, interval=10_000.0, retry=0.001)

    async def record(self, agent_id: str, address: str, found: NotReached | None) -> None:
        assert (agent_id, address) == ("n1", ADDRESS)
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        self.recorded.append(found)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.reachability.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, *recorded: NotReached | None) -> None:
        await eventually(lambda: self.recorded == list(recorded))


async def test_two_failures_in_a_row_count_and_one_success_ends_them() -> None:
    world = World()
    async with world.running():
        await world.until(None)
        world.dialer.found = REFUSED
        world.reachability.wake()
        await world.until(None, REFUSED)
        assert world.dialer.fails_at_once()
        # Other words are recorded, the same ones are not.
        world.dialer.found = TIMED_OUT
        await world.until(None, REFUSED, TIMED_OUT)
        world.dialer.found = None
        await world.until(None, REFUSED, TIMED_OUT, None)
        assert not world.dialer.fails_at_once()
    # A stream that is open is not interrupted by handshakes.
    assert set(world.dialer.wholes) == {False}


async def test_one_failure_is_not_enough() -> None:
    world = World()
    world.dialer.found = REFUSED
    reachability = Reachability(world.link, world.dialer, world.record, interval=10_000.0, retry=10_000.0)
    task = asyncio.create_task(reachability.run())
    try:
        reachability.wake()
        await eventually(lambda: world.dialer.wholes == [False])
        # What fails is repeated in its time, whatever else fails meanwhile.
        world.link.connected = False
        reachability.wake()
        await asyncio.sleep(0)
        assert len(world.dialer.wholes) == 1
        assert world.recorded == []
        assert not world.dialer.fails_at_once()
        # A stream that opens says that it may be reached.
        world.link.connected, world.dialer.found = True, None
        reachability.wake()
        await world.until(None)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_stream_that_opens_is_a_connection_that_was_made() -> None:
    world = World()
    world.dialer.found = REFUSED
    async with world.running():
        await world.until(REFUSED)
        world.dialer.found = TIMED_OUT
        probes = len(world.dialer.wholes)
        await eventually(lambda: len(world.dialer.wholes) > probes)
        world.link.connected = False
        world.reachability.turn()
        world.link.connected = True
        world.reachability.turn()
        await eventually(lambda: None in world.recorded)


async def test_without_a_stream_certificates_count_and_a_refused_stream_is_no_obstacle_to_calls() -> None:
    world = World()
    world.link.connected, world.link.refusal = False, COPY
    async with world.running():
        await world.until(COPY)
        assert set(world.dialer.wholes) == {True}
        assert not world.dialer.fails_at_once()
        world.link.refusal, world.link.connected = None, True
        await world.until(COPY, None)


async def test_what_cannot_be_recorded_is_recorded_later_and_only_the_end_of_the_term_ends_it() -> None:
    world = World()
    world.broken = ListenerBrokenError("the database is away")
    async with world.running() as task:
        await world.until(None)
        world.dialer.found, world.broken = REFUSED, RuntimeError("a defect")
        world.reachability.wake()
        await world.until(None, REFUSED)
        world.dialer.found, world.broken = None, TermOverError("another leads")
        with pytest.raises(TermOverError):
            await task


async def test_handshakes_wait_for_their_turn() -> None:
    world = World()
    turn = asyncio.Event()

    async def comes() -> None:
        await turn.wait()

    reachability = Reachability(world.link, world.dialer, world.record, interval=10_000.0, retry=0.001, turn=comes)
    world.link.connected = False
    task = asyncio.create_task(reachability.run())
    try:
        for _ in range(10):
            reachability.turn()
            await asyncio.sleep(0.001)
        assert world.dialer.wholes == []
        # The stream has opened meanwhile: nothing has to be looked at.
        world.link.connected = True
        reachability.turn()
        turn.set()
        await world.until(None)
        assert True not in world.dialer.wholes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
