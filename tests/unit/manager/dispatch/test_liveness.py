"""Silence makes agents lost, whatever they were before: those that never came, that refuse every stream,
and that were revoked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from retinue.manager.agent_rpc.dialer import Dialer
from retinue.manager.dispatch import supervisor
from retinue.manager.dispatch.supervisor import Supervisor
from retinue.manager.domain.agents.liveness import verdict, worsened
from retinue.manager.domain.agents.timers import Timers
from retinue.manager.domain.scheduling.records import AgentState
from retinue.manager.domain.session.states import Goal, SessionState
from retinue.manager.store.fleet.nodes import AgentTarget
from tests.support.controllers import Controller, Link, controller_of
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

STATES = tuple(AgentState)
# Looks at the clock every 16 ms; the clock is the test's own, in numbers that add up.
TIMERS = Timers(heartbeat=0.015625, suspect_after=0.0625, lost_after=0.125)


@pytest.mark.parametrize("state", STATES)
def test_who_was_not_heard_in_this_term_never_gets_better(state: AgentState) -> None:
    timers = Timers()
    order = {AgentState.JOINING: 0, AgentState.ALIVE: 0, AgentState.SUSPECT: 1, AgentState.LOST: 2}
    found = [worsened(state, silence, timers) for silence in (0.0, 19.9, 20.0, 59.9, 60.0, 1e9)]
    assert [order[item] for item in found] == sorted(order[item] for item in found)
    assert found[:2] == [state] * 2
    assert found[-2:] == [AgentState.LOST] * 2
    assert [verdict(silence, timers) for silence in (0.0, 20.0, 60.0)] == [
        AgentState.ALIVE,
        AgentState.SUSPECT,
        AgentState.LOST,
    ]


class FakeLink:
    """A link that is heard, or never."""

    made: list[str]
    answers: bool
    now: Callable[[], float]

    def __init__(self, agent_id: str, address: str, **_values: Any) -> None:
        self.agent_id, self.address = agent_id, address
        self.opened = FakeLink.now()
        FakeLink.made.append(agent_id)

    @property
    def heard(self) -> float | None:
        return FakeLink.now() if FakeLink.answers else None

    async def run(self) -> None:
        await asyncio.Event().wait()


class World:
    """Agents as stored, and a supervisor that looks after them."""

    def __init__(self, targets: dict[str, AgentTarget]) -> None:
        self.targets, self.time = targets, 100.0
        self.looks = 0

    async def read(self) -> dict[str, AgentTarget]:
        self.looks += 1
        return {
            agent_id: target
            for agent_id, target in self.targets.items()
            if target.state != AgentState.LOST or (target.address and not target.revoked)
        }

    async def liveness_changed(self, agent_id: str, state: AgentState, silence: float | None) -> None:
        target = self.targets[agent_id]
        self.targets[agent_id] = AgentTarget(target.address, state, target.underlay_address, target.revoked)

    async def look(self) -> None:
        """Returns once the supervisor has read and evaluated what is stored now."""
        before = self.looks
        await eventually(lambda: self.looks >= before + 2)


@contextlib.asynccontextmanager
async def supervised(world: World) -> Any:
    running = asyncio.create_task(
        Supervisor(
            incarnation="test",
            term=1,
            dialer=Dialer.__new__(Dialer),
            timers=TIMERS,
            targets=world.read,
            desired=lambda *_: asyncio.sleep(0),  # type: ignore[arg-type]
            removable=lambda *_: asyncio.sleep(0),  # type: ignore[arg-type]
            listener=world,  # type: ignore[arg-type]
            clock=lambda: world.time,
        ).run()
    )
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("link", Link)
async def test_every_agent_without_a_stream_becomes_lost(monkeypatch: pytest.MonkeyPatch, link: Link) -> None:
    address = "" if link is Link.NONE else "192.0.2.1:1"
    world = World(
        {
            f"{state.lower()}-{revoked}": AgentTarget(address, state, "", revoked)
            for state, revoked in itertools.product(STATES, (False, True))
        }
    )
    monkeypatch.setattr(supervisor, "AgentLink", FakeLink)
    FakeLink.made, FakeLink.answers, FakeLink.now = [], link is Link.OPEN, lambda: world.time
    async with supervised(world):
        await world.look()
        world.time += TIMERS.lost_after - 0.015625
        await world.look()
        early = {agent_id: target.state for agent_id, target in world.targets.items()}
        world.time += 0.015625
        await world.look()
    for agent_id, target in world.targets.items():
        heard = link is Link.OPEN and not target.revoked
        assert target.state == (AgentState.ALIVE if heard else AgentState.LOST), agent_id
        # Not before whatever it may still run has stopped by itself.
        assert early[agent_id] != AgentState.LOST or agent_id.startswith("lost"), agent_id
    dialled = {agent_id for agent_id, target in world.targets.items() if target.address and not target.revoked}
    assert set(FakeLink.made) == dialled


async def test_a_cancelled_look_is_an_interruption_and_no_defect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World({})
    read = world.read

    async def cancelled_at_first() -> dict[str, AgentTarget]:
        found = await read()
        if world.looks == 1:
            raise asyncio.CancelledError
        return found

    monkeypatch.setattr(world, "read", cancelled_at_first)
    async with supervised(world):
        await world.look()
    (record,) = (record for record in caplog.records if record.name == supervisor.__name__)
    assert record.levelname == "WARNING"
    assert not record.exc_info


async def test_who_enrols_again_is_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({"n": AgentTarget("", AgentState.LOST)})
    async with supervised(world):
        await world.look()
        world.targets["n"] = AgentTarget("", AgentState.JOINING)
        await world.look()
        world.time += TIMERS.lost_after
        await world.look()
    assert world.targets["n"].state == AgentState.LOST


async def test_the_link_of_a_revoked_agent_ends_and_its_silence_counts_from_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"n": AgentTarget("192.0.2.1:1", AgentState.ALIVE)})
    monkeypatch.setattr(supervisor, "AgentLink", FakeLink)
    FakeLink.made, FakeLink.answers, FakeLink.now = [], True, lambda: world.time
    async with supervised(world):
        world.time += 1000.0
        await world.look()
        world.targets["n"] = AgentTarget("192.0.2.1:1", AgentState.ALIVE, "", revoked=True)
        await world.look()
        assert world.targets["n"].state == AgentState.ALIVE
        world.time += TIMERS.lost_after
        await world.look()
    assert world.targets["n"].state == AgentState.LOST


@pytest.mark.parametrize("session", SessionState)
@pytest.mark.parametrize("goal", Goal)
def test_every_combination_has_a_controller(session: SessionState, goal: Goal) -> None:
    for state, revoked, link, may_retry in itertools.product(STATES, (False, True), Link, (False, True)):
        found = controller_of(state, revoked=revoked, link=link, session=session, goal=goal, may_retry=may_retry)
        assert found in Controller
        if revoked:
            # Nothing is waited for that can never come.
            assert found in {Controller.LIVENESS, Controller.STRANDED}
        if goal is Goal.STOPPED or session is not SessionState.RUNNING:
            assert found is not Controller.RETURN
