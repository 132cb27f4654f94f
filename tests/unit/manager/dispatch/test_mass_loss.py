"""When too many agents of a group are silent together, none of them becomes lost."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.agent_rpc.dialer import Dialer
from retinue.manager.dispatch import supervisor
from retinue.manager.dispatch.supervisor import Supervisor
from retinue.manager.domain.agents.mass_loss import Member, held_losses
from retinue.manager.domain.agents.timers import Timers
from retinue.manager.domain.scheduling.records import AgentState, LossHold, MassLossRule
from retinue.manager.store.fleet.nodes import AgentTarget
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

# Of a clock that is the test's own, in numbers that add up.
TIMERS = Timers(heartbeat=0.015625, suspect_after=0.0625, lost_after=0.125)
RULE = MassLossRule(percent=50, agents=3, window=1.0)
SILENCES = (0.0, TIMERS.suspect_after, TIMERS.lost_after, TIMERS.lost_after + RULE.window, float("inf"))
members = st.builds(
    Member,
    id=st.just(""),
    group=st.sampled_from("ab"),
    rule=st.just(RULE),
    state=st.sampled_from(AgentState),
    silence=st.sampled_from(SILENCES),
    hold=st.sampled_from(LossHold),
    counts=st.booleans(),
)


def named(found: Iterable[Member]) -> list[Member]:
    return [replace(member, id=f"n{position}") for position, member in enumerate(found)]


@given(st.lists(members, max_size=12))
def test_all_that_would_be_lost_are_held_or_none(drawn: list[Member]) -> None:
    found = named(drawn)
    expected = set()
    for group in "ab":
        mine = [member for member in found if member.group == group]
        counted = [
            member
            for member in mine
            if member.counts
            and member.hold is not LossHold.CONFIRMED
            and member.state is not AgentState.JOINING
            and (member.state is not AgentState.LOST or member.silence < TIMERS.lost_after + RULE.window)
        ]
        silent = [member for member in counted if member.silence >= TIMERS.suspect_after]
        fresh = counted if len(silent) >= 3 and 2 * len(silent) > len(counted) else []
        expected |= {
            member.id
            for member in mine
            if member.state is not AgentState.LOST
            and (
                member.hold is LossHold.HELD
                or (member.hold is LossHold.NONE and member in fresh and member.silence >= TIMERS.lost_after)
            )
        }
    assert held_losses(found, TIMERS).keys() == expected


@given(st.lists(members.filter(lambda member: member.hold is LossHold.NONE), max_size=2))
def test_nothing_is_held_in_a_small_group(drawn: list[Member]) -> None:
    assert not held_losses(named(drawn), TIMERS)


@pytest.mark.parametrize(
    ("percent", "silent", "holds"), [(50, 5, False), (50, 6, True), (100, 10, False), (1, 3, True)]
)
def test_the_share_is_exceeded_or_nothing_is_held(percent: int, silent: int, holds: bool) -> None:
    rule = replace(RULE, percent=percent)
    found = named(
        Member("", "g", rule, AgentState.SUSPECT if number < silent else AgentState.ALIVE, 0.125 * (number < silent))
        for number in range(10)
    )
    assert len(held_losses(found, TIMERS)) == silent * holds


def test_agents_that_fail_one_after_the_other_are_seen_by_those_that_were_lost_before() -> None:
    lost = [Member("", "g", RULE, AgentState.LOST, 0.5) for _ in range(4)]
    alive = [Member("", "g", RULE, AgentState.ALIVE, 0.0) for _ in range(3)]
    last = Member("", "g", RULE, AgentState.SUSPECT, TIMERS.lost_after)
    assert set(held_losses(named([*lost, *alive, last]), TIMERS)) == {"n7"}
    long_lost = [replace(member, silence=TIMERS.lost_after + RULE.window) for member in lost]
    assert not held_losses(named([*long_lost, *alive, last]), TIMERS)


class FakeLink:
    """A link that is heard when its agent is up."""

    world: World

    def __init__(self, agent_id: str, address: str, **_values: Any) -> None:
        self.agent_id, self.address, self.opened = agent_id, address, FakeLink.world.time
        self._heard: float | None = None

    @property
    def heard(self) -> float | None:
        if self.agent_id in FakeLink.world.up:
            self._heard = FakeLink.world.time
        return self._heard

    async def run(self) -> None:
        await asyncio.Event().wait()


class World:
    """Agents as stored, of which some are up."""

    def __init__(self, number: int) -> None:
        self.time = 100.0
        target = AgentTarget("192.0.2.1:1", AgentState.ALIVE, group="g", silence=0.0, mass_loss=RULE)
        self.targets = {f"n{position}": target for position in range(number)}
        self.up = set(self.targets)
        self.lost: list[str] = []
        self.looks = 0
        # Raises what a record fails with.
        self.fails: Callable[[], None] = lambda: None

    async def read(self) -> dict[str, AgentTarget]:
        self.looks += 1
        return {agent_id: target for agent_id, target in self.targets.items() if not target.revoked}

    async def liveness_changed(self, agent_id: str, state: AgentState, silence: float | None) -> None:
        self.lost += [agent_id] if state is AgentState.LOST else []
        hold = self.targets[agent_id].hold if state is AgentState.SUSPECT else LossHold.NONE
        self.change(agent_id, state=state, silence=silence, hold=hold)

    async def loss_held(self, agent_id: str, why: str) -> None:
        self.fails()
        assert "silent" in why
        self.change(agent_id, hold=LossHold.HELD)

    def change(self, agent_id: str, **values: Any) -> None:
        self.targets[agent_id] = replace(self.targets[agent_id], **values)

    def states(self) -> dict[str, tuple[str, str]]:
        return {agent_id: (target.state.value, target.hold.value) for agent_id, target in self.targets.items()}

    async def pass_time(self, seconds: float) -> None:
        """Returns once the supervisor has read and evaluated what is so many seconds later."""
        # Each step is heard, as heartbeats are.
        for _ in range(int(seconds / TIMERS.heartbeat)):
            self.time += TIMERS.heartbeat
            before = self.looks
            await eventually(lambda before=before: self.looks >= before + 2)  # type: ignore[misc]


@contextlib.asynccontextmanager
async def led(world: World) -> AsyncIterator[None]:
    """A leader, which has heard nobody yet."""
    FakeLink.world = world
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


@pytest.fixture(autouse=True)
def _links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "AgentLink", FakeLink)


HELD, WELL, GONE = ("SUSPECT", "HELD"), ("ALIVE", ""), ("LOST", "")


@pytest.mark.attack("mass-loss")
async def test_a_mass_loss_is_held_over_leaders_until_agents_are_back_or_it_is_confirmed() -> None:
    world = World(5)
    gone = {"n0", "n1", "n2"}
    async with led(world):
        await world.pass_time(0.0625)
        world.up -= gone
        await world.pass_time(0.1875)
        assert world.states() == {"n0": HELD, "n1": HELD, "n2": HELD, "n3": WELL, "n4": WELL}
    # The next leader heard none of them, and has it from the store.
    async with led(world):
        await world.pass_time(0.1875)
        assert world.lost == []
        # One that is back changes nothing for the others, though most are there again.
        world.up.add("n0")
        await world.pass_time(0.1875)
        assert world.states() == {"n0": WELL, "n1": HELD, "n2": HELD, "n3": WELL, "n4": WELL}
        world.change("n1", hold=LossHold.CONFIRMED)
        await world.pass_time(0.03125)
        assert world.states() == {"n0": WELL, "n1": GONE, "n2": HELD, "n3": WELL, "n4": WELL}
    assert world.lost == ["n1"]


async def test_few_losses_and_small_groups_are_as_before() -> None:
    for number, gone in ((5, {"n0", "n1"}), (2, {"n0", "n1"}), (1, {"n0"}), (6, {"n0", "n1", "n2"})):
        world = World(number)
        async with led(world):
            await world.pass_time(0.0625)
            world.up -= gone
            await world.pass_time(0.1875)
        assert set(world.lost) == gone


async def test_a_new_leader_holds_what_it_never_heard_and_no_agent_that_comes_in_time() -> None:
    world = World(5)
    world.up.clear()
    async with led(world):
        await world.pass_time(0.109375)
        # Late, and before the bound: nothing is held, however many are missing until then.
        assert {hold for _, hold in world.states().values()} == {""}
        world.up = {"n0", "n1", "n2"}
        await world.pass_time(0.0625)
        assert world.lost == ["n3", "n4"]
        assert world.states()["n0"] == WELL
    world = World(5)
    world.up.clear()
    async with led(world):
        await world.pass_time(0.1875)
    assert set(world.states().values()) == {HELD}


async def test_agents_that_were_drained_revoked_or_lost_long_before_do_not_count() -> None:
    world = World(7)
    for agent_id in ("n0", "n1"):
        world.change(agent_id, drained=True)
    world.change("n2", revoked=True)
    for agent_id in ("n3", "n4"):
        world.change(agent_id, state=AgentState.LOST, silence=1e6)
    world.up = {"n6"}
    async with led(world):
        await world.pass_time(0.1875)
    assert set(world.lost) == {"n0", "n1", "n5"}


async def test_what_is_not_recorded_is_tried_again_and_not_taken_for_lost() -> None:
    world = World(3)
    failures = 3

    def fail() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ValueError("the row is locked")

    world.fails = fail
    async with led(world):
        await world.pass_time(0.0625)
        world.up.clear()
        await world.pass_time(0.25)
    assert failures == 0
    assert world.lost == []
    assert set(world.states().values()) == {HELD}
