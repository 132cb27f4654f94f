"""Plans a whole endpoint: its replicas, and the rollout from one revision to another. Pure; times in milliseconds.

The old revision serves until the new one is ready. It is only drained, never made to grow, unless it has a share of its
own or the rollout goes back. A rollout goes back by itself when its revision cannot start, makes no progress,
or answers with too many errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from retinue.manager.domain.endpoints.replicas import (
    NONE,
    Action,
    Draft,
    Fleet,
    MoveRollout,
    SetTraffic,
    Want,
    divided,
    finish,
    goals,
    ready_counts,
)
from retinue.manager.domain.endpoints.states import FINISHED_ROLLOUTS, ReplicaState, RolloutState

# A revision whose starts failed so often in a row is given up.
MAX_FAILURES = 5


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of replicas, or a percentage of the target."""

    number: int = 0
    percent: int = 0

    def of(self, target: int, *, up: bool) -> int:
        """Returns the number for a target, a percentage rounded up or down."""
        share = target * self.percent
        return self.number + (-(-share // 100) if up else share // 100)


@dataclass(frozen=True, slots=True)
class Rolling:
    """Replicas are replaced within a surge and a number that may be missing."""

    max_surge: Amount = field(default_factory=lambda: Amount(1))
    max_unavailable: Amount = field(default_factory=Amount)


@dataclass(frozen=True, slots=True)
class BlueGreen:
    """All new replicas come first; then all requests move, and the old replicas stay for `keep_old`."""

    keep_old: int = 600_000
    automatic: bool = False


@dataclass(frozen=True, slots=True)
class CanaryStep:
    """A share for the new revision, for `hold`, or until it is promoted when that is None."""

    percent: int
    hold: int | None = None


@dataclass(frozen=True, slots=True)
class Canary:
    """The new revision gets its share step by step, and then all."""

    steps: tuple[CanaryStep, ...] = ()


@dataclass(frozen=True, slots=True)
class AbortOn:
    """The share of errors among at least so many answers at which a rollout goes back."""

    error_percent: int
    min_requests: int = 100


Strategy: TypeAlias = Rolling | BlueGreen | Canary


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """How a new revision takes over."""

    strategy: Strategy = field(default_factory=Rolling)
    abort_on: AbortOn | None = None
    progress_timeout: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout as it is now. `step` counts the changes of shares so far; `promoted`: the next one does not wait.

    `progress_at` is when a replica more became ready, or the revision had all it needs;
    `requests` and `errors` are answers since it began.
    """

    old: int
    new: int
    state: RolloutState
    step: int
    since: int
    policy: RolloutPolicy = field(default_factory=RolloutPolicy)
    promoted: bool = False
    progress_at: int = 0
    requests: int = 0
    errors: int = 0

    @property
    def is_running(self) -> bool:
        """Returns whether it is not finished."""
        return self.state not in FINISHED_ROLLOUTS


def plan(fleet: Fleet, rollout: Rollout | None) -> list[Action]:
    """Returns what is to be done now. Without any change from outside, what is done leads to a plan that is empty."""
    draft = Draft(fleet)
    finish(draft)
    if fleet.target == 0:
        _sleep(draft, rollout)
    elif rollout is None or not rollout.is_running:
        _converge(draft, {item.number: item.percent for item in fleet.revisions.values()})
    elif rollout.state is RolloutState.ROLLING_BACK:
        _roll_back(draft, rollout)
    elif rollout.state is RolloutState.PROGRESSING and (why := _failure(fleet, rollout)):
        draft.actions.append(MoveRollout(RolloutState.ROLLING_BACK, rollout.step, why))
    else:
        match rollout.policy.strategy:
            case Rolling() as strategy:
                _roll(draft, rollout, strategy)
            case BlueGreen() as strategy:
                _blue_green(draft, rollout, strategy)
            case Canary() as strategy:
                _canary(draft, rollout, strategy)
    return draft.actions


def effective_shares(fleet: Fleet, rollout: Rollout | None) -> dict[int, int]:
    """Returns the shares in force: of revisions that have a ready replica, 100 together; all 0 when none has."""
    ready = ready_counts(fleet.replicas)
    stored = {item.number: item.percent for item in fleet.revisions.values()}
    weights = {number: percent for number, percent in stored.items() if percent > 0 and ready.get(number)}
    if rollout is not None and rollout.is_running and _shares_by_replicas(rollout, weights):
        weights = {number: ready[number] for number in (rollout.old, rollout.new) if ready.get(number)} or weights
    # Whatever is ready serves, before nothing does.
    weights = weights or ready
    shares = dict.fromkeys(fleet.revisions, 0)
    return shares | divided(100, weights) if weights else shares


def wants_more(fleet: Fleet, rollout: Rollout) -> bool:
    """Returns whether the new revision has fewer ready replicas than it is to have now."""
    ready = ready_counts(fleet.replicas).get(rollout.new, 0)
    match rollout.policy.strategy:
        case Canary() as strategy:
            return ready < goals(fleet.target, _canary_shares(rollout, strategy)).get(rollout.new, 0)
        case _:
            return ready < fleet.target


def _shares_by_replicas(rollout: Rollout, weights: dict[int, int]) -> bool:
    if not isinstance(rollout.policy.strategy, Rolling):
        return False
    return rollout.state is not RolloutState.ROLLING_BACK or rollout.old not in weights


def _failure(fleet: Fleet, rollout: Rollout) -> str:
    """Returns why a rollout has to go back; empty when it need not."""
    failures = fleet.revisions[rollout.new].failures
    if failures >= MAX_FAILURES:
        return f"{failures} replicas of revision {rollout.new} in a row ended before they were ready"
    abort_on = rollout.policy.abort_on
    if (
        abort_on is not None
        and rollout.requests >= abort_on.min_requests
        and 100 * rollout.errors > abort_on.error_percent * rollout.requests
    ):
        return f"{rollout.errors} of {rollout.requests} answers of revision {rollout.new} were errors"
    if wants_more(fleet, rollout) and fleet.now - rollout.progress_at >= rollout.policy.progress_timeout:
        return "no further replica became ready in time"
    return ""


def _sleep(draft: Draft, rollout: Rollout | None) -> None:
    """Ends all replicas, once requests are held. A rollout continues when something is asked for:
    its revision has not been tried.
    """
    fleet = draft.fleet
    for item in fleet.of(fleet.revisions):
        if item.state is not ReplicaState.READY or fleet.gated:
            draft.drain(item, NONE)
    if rollout is not None and rollout.state is RolloutState.ROLLING_BACK:
        _end(draft, rollout, rollout.old, RolloutState.ROLLED_BACK, "nothing is asked for")


def _converge(draft: Draft, shares: dict[int, int]) -> None:
    numbers = {**dict.fromkeys(draft.fleet.revisions, 0), **goals(draft.fleet.target, shares)}
    for number, wanted in numbers.items():
        draft.converge(number, Want(wanted))


def _roll(draft: Draft, rollout: Rollout, strategy: Rolling) -> None:
    fleet, target = draft.fleet, draft.fleet.target
    surge = strategy.max_surge.of(target, up=True)
    unavailable = min(target, strategy.max_unavailable.of(target, up=False))
    if surge == unavailable == 0:
        surge = 1
    new, old = fleet.of([rollout.new]), fleet.of(fleet.revisions.keys() - {rollout.new})
    if rollout.state is RolloutState.PAUSED:
        draft.add(rollout.new, max(len(new), target - len(old)))
        return
    wanted = min(target, max(len(new), target + surge - len(old)))
    draft.converge(rollout.new, Want(wanted, surge=target + surge - len(old) - wanted))
    draft.drain_spare(old, f"revision {rollout.new} takes over", unavailable=unavailable)
    if not old and sum(item.state is ReplicaState.READY for item in new) >= target:
        _end(draft, rollout, rollout.new, RolloutState.DONE, "all replicas are of the new revision")


def _blue_green(draft: Draft, rollout: Rollout, strategy: BlueGreen) -> None:
    fleet, target = draft.fleet, draft.fleet.target
    old = fleet.of(fleet.revisions.keys() - {rollout.new})
    draft.converge(rollout.new, Want(target))
    ready = ready_counts(fleet.replicas)
    if rollout.step == 0:
        _keep(draft, rollout.old)
        complete = ready.get(rollout.new, 0) >= target
        if rollout.state is RolloutState.PROGRESSING and complete and (strategy.automatic or rollout.promoted):
            _share(draft, rollout, {rollout.new: 100}, "all requests go to the new revision")
    elif rollout.state is RolloutState.PROGRESSING and (
        fleet.now - rollout.since >= strategy.keep_old or rollout.promoted
    ):
        draft.drain_spare(old, f"revision {rollout.new} has taken over")
        if not old:
            _end(draft, rollout, rollout.new, RolloutState.DONE, "all replicas are of the new revision")


def _canary(draft: Draft, rollout: Rollout, strategy: Canary) -> None:
    fleet, target = draft.fleet, draft.fleet.target
    last = rollout.step > len(strategy.steps)
    old = fleet.of(fleet.revisions.keys() - {rollout.new})
    wanted = goals(target, _canary_shares(rollout, strategy)).get(rollout.new, 0)
    if rollout.state is RolloutState.PAUSED or not _is_due(fleet, rollout, strategy):
        stored = {item.number: item.percent for item in fleet.revisions.values()}
        wanted = goals(target, stored).get(rollout.new, 0)
        draft.converge(rollout.new, Want(wanted))
        _keep(draft, rollout.old)
        return
    draft.converge(rollout.new, Want(wanted))
    ready = ready_counts(fleet.replicas)
    if not last:
        _keep(draft, rollout.old)
        if ready.get(rollout.new, 0) >= wanted:
            shares = _canary_shares(rollout, strategy)
            _share(draft, rollout, shares, f"the new revision has {shares[rollout.new]} % of the requests")
        return
    draft.drain_spare(old, f"revision {rollout.new} takes over")
    if not old:
        _end(draft, rollout, rollout.new, RolloutState.DONE, "all replicas are of the new revision")


def _canary_shares(rollout: Rollout, strategy: Canary) -> dict[int, int]:
    """Returns the shares that come next."""
    percent = strategy.steps[rollout.step].percent if rollout.step < len(strategy.steps) else 100
    return {rollout.old: 100 - percent, rollout.new: percent}


def _is_due(fleet: Fleet, rollout: Rollout, strategy: Canary) -> bool:
    """Returns whether the step that the rollout is in has been held."""
    if rollout.step == 0 or rollout.step > len(strategy.steps) or rollout.promoted:
        return True
    hold = strategy.steps[rollout.step - 1].hold
    return hold is not None and fleet.now - rollout.since >= hold


def _keep(draft: Draft, number: int) -> None:
    """Keeps the old revision at what its share needs."""
    stored = {item.number: item.percent for item in draft.fleet.revisions.values()}
    draft.converge(number, Want(goals(draft.fleet.target, stored).get(number, 0)))


def _roll_back(draft: Draft, rollout: Rollout) -> None:
    fleet, target = draft.fleet, draft.fleet.target
    old, new = fleet.of([rollout.old]), fleet.of(fleet.revisions.keys() - {rollout.old})
    wanted = min(target, max(len(old), target + 1 - len(new)))
    draft.converge(rollout.old, Want(wanted, surge=target + 1 - len(new) - wanted))
    ready = ready_counts(fleet.replicas)
    if ready.get(rollout.old) and fleet.revisions[rollout.old].percent != 100:  # noqa: PLR2004  # the whole
        draft.actions.append(SetTraffic(((rollout.old, 100),)))
    draft.drain_spare(new, f"revision {rollout.old} takes over again")
    if not new and ready.get(rollout.old, 0) >= target:
        _end(draft, rollout, rollout.old, RolloutState.ROLLED_BACK, "all replicas are of the old revision again")


def _share(draft: Draft, rollout: Rollout, shares: dict[int, int], message: str) -> None:
    draft.actions.append(SetTraffic(tuple(sorted(shares.items()))))
    draft.actions.append(MoveRollout(RolloutState.PROGRESSING, rollout.step + 1, message))


def _end(draft: Draft, rollout: Rollout, number: int, state: RolloutState, message: str) -> None:
    if draft.fleet.revisions[number].percent != 100:  # noqa: PLR2004  # the whole
        draft.actions.append(SetTraffic(((number, 100),)))
    draft.actions.append(MoveRollout(state, rollout.step, message))
