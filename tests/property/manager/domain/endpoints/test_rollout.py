"""What rollouts and replicas never do: over every interleaving of small cases,
and over long random lives of larger ones.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from retinue.manager.domain.endpoints.replicas import (
    Action,
    CallBack,
    Create,
    Drain,
    Fleet,
    MoveRollout,
    Replica,
    Revision,
    SetTraffic,
    Stop,
    divided,
    goals,
)
from retinue.manager.domain.endpoints.rollout import (
    Amount,
    BlueGreen,
    Canary,
    CanaryStep,
    Rolling,
    Rollout,
    RolloutPolicy,
    effective_shares,
    plan,
)
from retinue.manager.domain.endpoints.states import REPLICA_MOVES, ROLLOUT_MOVES, SERVING, ReplicaState, RolloutState

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD, NEW = 1, 2
_S = ReplicaState


@dataclass(frozen=True, slots=True)
class World:
    """An endpoint in a model: what is there, and what a plan was made from."""

    target: int
    replicas: tuple[Replica, ...]
    shares: tuple[tuple[int, int], ...] = ((OLD, 100), (NEW, 0))
    rollout: Rollout | None = None
    now: int = 0
    serial: int = 100
    failures: int = 0

    @property
    def fleet(self) -> Fleet:
        revisions = {
            number: Revision(number, percent, failures=self.failures if number == NEW else 0)
            for number, percent in self.shares
        }
        return Fleet(self.target, revisions, self.replicas, self.now, gated=True)

    @property
    def key(self) -> object:
        """What makes two worlds the same; time and numbers of replicas do not."""
        found = sorted((item.revision, item.state, item.leaving) for item in self.replicas)
        moved = self.rollout and (self.rollout.state, self.rollout.step, self.rollout.promoted)
        return self.target, tuple(found), self.shares, moved, self.failures

    def step(self) -> tuple[World, list[Action]]:
        """Plans, and does what is planned."""
        actions = plan(self.fleet, self.rollout)
        world = self
        for action in actions:
            world = world.done(action)
        return world, actions

    def done(self, action: Action) -> World:
        match action:
            case Create(revision, number):
                made = tuple(
                    Replica(uuid.UUID(int=self.serial + n), revision, _S.STARTING, self.serial + n)
                    for n in range(number)
                )
                return replace(self, replicas=(*self.replicas, *made), serial=self.serial + number)
            case Drain(session_id, until, _):
                assert _S.DRAINING in REPLICA_MOVES[self.state_of(session_id)]
                return self.changed(session_id, state=_S.DRAINING, stop_at=until, acknowledged=True)
            case CallBack(session_id):
                assert _S.READY in REPLICA_MOVES[self.state_of(session_id)]
                return self.changed(session_id, state=_S.READY)
            case Stop(session_id):
                assert _S.STOPPING in REPLICA_MOVES[self.state_of(session_id)]
                return self.without(session_id)
            case SetTraffic(shares):
                assert sum(percent for _, percent in shares) == 100
                return replace(self, shares=tuple({**dict.fromkeys((OLD, NEW), 0), **dict(shares)}.items()))
            case MoveRollout(state, step, _):
                assert self.rollout is not None
                assert state is self.rollout.state or state in ROLLOUT_MOVES[self.rollout.state]
                moved = replace(self.rollout, state=state, step=step, since=self.now, promoted=False)
                return replace(self, rollout=moved)

    def state_of(self, session_id: uuid.UUID) -> ReplicaState:
        return next(item.state for item in self.replicas if item.session_id == session_id)

    def changed(self, session_id: uuid.UUID, **values: object) -> World:
        return replace(
            self,
            replicas=tuple(
                replace(item, since=self.now, **values) if item.session_id == session_id else item  # type: ignore[arg-type]
                for item in self.replicas
            ),
        )

    def without(self, session_id: uuid.UUID) -> World:
        return replace(self, replicas=tuple(item for item in self.replicas if item.session_id != session_id))

    def count(self, *states: ReplicaState, revision: int | None = None) -> int:
        return sum(item.state in states and (revision is None or item.revision == revision) for item in self.replicas)


def ready(number: int, revision: int = OLD) -> tuple[Replica, ...]:
    return tuple(Replica(uuid.UUID(int=n), revision, _S.READY, n) for n in range(number))


def rolling(target: int, policy: RolloutPolicy) -> World:
    return World(target, ready(target), rollout=Rollout(OLD, NEW, RolloutState.PROGRESSING, 0, 0, policy))


POLICIES = {
    "rolling": RolloutPolicy(Rolling()),
    "rolling by unavailable": RolloutPolicy(Rolling(Amount(0), Amount(1))),
    "rolling by half": RolloutPolicy(Rolling(Amount(percent=50), Amount(percent=25))),
    "blue and green": RolloutPolicy(BlueGreen(automatic=True)),
    "canary": RolloutPolicy(Canary((CanaryStep(10, 60_000), CanaryStep(50, 60_000)))),
}


def events(world: World) -> Iterator[World]:
    """Everything that may happen to one replica or to all at once."""
    for item in world.replicas:
        if item.state in (_S.STARTING, _S.UNREADY):
            yield world.changed(item.session_id, state=_S.READY)
        if item.state is _S.STARTING and item.revision == NEW and world.failures < 6:
            yield replace(world.without(item.session_id), failures=world.failures + 1)
        if item.state is _S.READY:
            yield world.changed(item.session_id, state=_S.UNREADY)
            yield world.without(item.session_id)
    yield replace(world, now=world.now + 700_000)


def bound(world: World) -> int:
    """Returns how many replicas there may be that do not drain."""
    target, rollout = world.target, world.rollout
    if rollout is None or not rollout.is_running:
        return max(target, 2) + 1
    match rollout.policy.strategy:
        case Rolling() as strategy:
            return target + max(1, strategy.max_surge.of(target, up=True))
        case _:
            # Two full sets, and one more of each while replicas leave.
            return 2 * target + 2


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("target", [1, 2])
def test_every_interleaving_of_a_small_rollout(name: str, target: int) -> None:
    first = rolling(target, POLICIES[name])
    seen = {first.key}
    waiting = [first]
    while waiting:
        world = waiting.pop()
        after, actions = world.step()
        check(world, after, actions)
        for following in (after, *events(after)):
            if following.key not in seen:
                seen.add(following.key)
                waiting.append(following)
    assert len(seen) > 10


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(30))
def test_random_lives_keep_the_rules_and_come_to_rest(name: str, seed: int) -> None:
    choice = random.Random(seed)
    world = rolling(choice.randint(1, 12), POLICIES[name])
    for _ in range(80):
        after, actions = world.step()
        check(world, after, actions)
        world = choice.choice(list(events(after)))
        if choice.random() < 0.1:
            world = replace(world, target=choice.randint(0, 12))
        if choice.random() < 0.1 and world.replicas:
            item = choice.choice(world.replicas)
            world = world.changed(item.session_id, state=item.state, leaving=not item.leaving)
    assert at_rest(world)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(20))
def test_a_clock_that_jumps_breaks_no_rule(name: str, seed: int) -> None:
    """Back before everything began, and years ahead: at most a wait is shorter or longer."""
    choice = random.Random(seed)
    world = replace(rolling(choice.randint(1, 8), POLICIES[name]), now=10_000_000)
    for _ in range(60):
        after, actions = world.step()
        check(world, after, actions)
        world = choice.choice(list(events(after)))
        if choice.random() < 0.4:
            years = 3 * 365 * 86_400_000
            world = replace(world, now=max(0, world.now + choice.choice([-years, -3_600_000, -1, 0, years])))
    assert at_rest(world)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("target", [1, 3, 10])
def test_a_rollout_that_nothing_disturbs_replaces_all(name: str, target: int) -> None:
    world = come_to_rest(rolling(target, POLICIES[name]))
    assert world.rollout is not None
    assert world.rollout.state is RolloutState.DONE
    assert dict(world.shares) == {OLD: 0, NEW: 100}
    assert world.count(_S.READY, revision=NEW) == target == len(world.replicas)


@pytest.mark.parametrize("name", POLICIES)
def test_a_revision_that_never_starts_leaves_the_old_one_as_it_was(name: str) -> None:
    world = rolling(3, POLICIES[name])
    for _ in range(30):
        world, _ = world.step()
        for item in world.replicas:
            if item.revision == NEW and item.state is _S.STARTING:
                world = replace(world.without(item.session_id), failures=world.failures + 1)
        assert world.count(_S.READY) >= 2
    world = come_to_rest(world)
    assert world.rollout is not None
    assert world.rollout.state is RolloutState.ROLLED_BACK
    assert world.count(_S.READY, revision=OLD) == 3 == len(world.replicas)


def check(before: World, after: World, actions: list[Action]) -> None:
    live = after.count(*SERVING)
    assert live <= max(bound(before), before.count(*SERVING)), actions
    shares = effective_shares(after.fleet, after.rollout)
    total = sum(shares.values())
    assert total == (100 if after.count(_S.READY) else 0)
    assert all(after.count(_S.READY, revision=number) for number, percent in shares.items() if percent)
    # What serves is not taken away below what may be missing.
    rollout = before.rollout
    if before.target and rollout is not None and rollout.is_running:
        missing = 0
        if isinstance(rollout.policy.strategy, Rolling):
            missing = rollout.policy.strategy.max_unavailable.of(before.target, up=False)
        least = min(before.count(_S.READY), before.target - missing)
        assert after.count(_S.READY) >= least, actions
    named = [action.session_id for action in actions if isinstance(action, Drain | Stop | CallBack)]
    assert len(set(named)) == len(named)


def come_to_rest(world: World) -> World:
    """Lets everything that starts become ready, and time pass, until nothing is planned."""
    for _ in range(200):
        world, actions = world.step()
        before = world
        for item in world.replicas:
            if item.state in (_S.STARTING, _S.UNREADY):
                world = world.changed(item.session_id, state=_S.READY)
        world = replace(world, now=world.now + 30_000)
        settled = world.rollout is None or not world.rollout.is_running or world.target == 0
        if not actions and settled and world.replicas == before.replicas:
            return world
    raise AssertionError(f"it does not come to rest: {world}")


def at_rest(world: World) -> bool:
    rested = come_to_rest(replace(world, replicas=tuple(replace(item, leaving=False) for item in world.replicas)))
    return not plan(rested.fleet, rested.rollout)


def test_goals_are_by_largest_remainder_and_at_least_one() -> None:
    assert goals(10, {1: 90, 2: 10}) == {1: 9, 2: 1}
    assert goals(4, {1: 90, 2: 10}) == {1: 4, 2: 1}
    assert goals(0, {1: 100}) == {1: 0}
    assert goals(3, {1: 100, 2: 0}) == {1: 3}
    for whole in range(30):
        for share in range(1, 100):
            assert sum(divided(whole, {1: share, 2: 100 - share}).values()) == whole


def test_who_goes_first() -> None:
    states = [_S.READY, _S.READY, _S.STARTING, _S.STARTING, _S.UNREADY]
    replicas = [
        Replica(uuid.UUID(int=n), OLD, state, n, requests=n if state is _S.READY else 0)
        for n, state in enumerate(states)
    ]
    gone = []
    fleet = World(5, tuple(replicas), shares=((OLD, 100),)).fleet
    for target in (4, 3, 2, 1):
        (action,) = plan(replace(fleet, target=target), None)
        assert isinstance(action, Drain | Stop)
        gone.append(action.session_id.int)
        fleet = replace(fleet, replicas=[item for item in fleet.replicas if item.session_id != action.session_id])
    assert gone == [4, 3, 2, 0]


def test_a_drain_ends_without_requests_or_at_its_deadline() -> None:
    draining = Replica(uuid.UUID(int=1), OLD, _S.DRAINING, 1, requests=2, stop_at=1_000, acknowledged=True)
    world = World(0, (draining,), shares=((OLD, 100),))

    def stops(**values: int | bool | None) -> bool:
        now = values.pop("now", 0)
        item = replace(draining, **values)  # type: ignore[arg-type]
        return bool(plan(replace(world, replicas=(item,), now=int(now or 0)).fleet, None))

    assert not stops()
    assert stops(requests=0)
    assert not stops(requests=0, acknowledged=False)
    assert not stops(requests=None)
    assert stops(now=1_000)
    assert not stops(now=1_000, acknowledged=False)
    assert stops(now=16_000, acknowledged=False)


def test_a_replica_on_a_draining_agent_goes_when_another_is_ready() -> None:
    world = World(1, (replace(ready(1)[0], leaving=True),), shares=((OLD, 100),))
    world, actions = world.step()
    assert actions == [Create(OLD, 1)]
    assert world.step()[1] == []
    made = world.replicas[-1]
    _, actions = world.changed(made.session_id, state=_S.READY).step()
    assert [type(action) for action in actions] == [Drain]


def test_a_replica_on_a_lost_agent_is_replaced_at_once_and_the_surplus_drains_when_it_is_back() -> None:
    one, two = ready(2)
    world = World(2, (one, replace(two, lost=True)), shares=((OLD, 100),))
    world, actions = world.step()
    assert actions == [Create(OLD, 1)]
    world = world.changed(world.replicas[-1].session_id, state=_S.READY)
    assert world.step()[1] == []
    back = replace(world, replicas=tuple(replace(item, lost=False) for item in world.replicas))
    assert [type(action) for action in back.step()[1]] == [Drain]


def test_a_draining_replica_is_called_back_before_another_is_made() -> None:
    world = World(2, (*ready(1), replace(ready(2)[1], state=_S.DRAINING, requests=3)), shares=((OLD, 100),))
    assert world.step()[1] == [CallBack(uuid.UUID(int=1))]


def test_the_last_replicas_wait_until_requests_are_held() -> None:
    world = World(0, ready(2), shares=((OLD, 100),))
    assert plan(replace(world.fleet, gated=False), None) == []
    assert len(plan(world.fleet, None)) == 2
