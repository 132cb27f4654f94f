"""Plans what is to be done with the replicas of one endpoint: made, drained, called back, stopped. Pure;
times in milliseconds.

One order for every stop: out of the table, acknowledged by all live routers, no request left or the deadline, then the
session ends. A replica on an agent that drains is replaced before it goes; one on a lost agent no longer counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from retinue.manager.domain.endpoints.states import SERVING, Lifecycle, ReplicaState, RolloutState
from retinue.manager.domain.reasons import SessionReason

# A replica that is not ready for so long is replaced.
UNREADY_MS = 600_000
FEWER, NONE = "fewer replicas are wanted", "no replica is wanted"
# A router that is silent for so long is not waited for.
SILENCE_MS = 15_000


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as it is now. `serial` rises with every replica that is made; `requests` is None while unknown.

    `leaving`: its agent drains. `lost`: its agent is lost. `held`: that loss is held, and nothing is replaced there.
    `acknowledged`: every live router knows that it drains.
    """

    session_id: uuid.UUID
    revision: int
    state: ReplicaState
    serial: int
    since: int = 0
    # When its session began to run.
    running_since: int | None = None
    requests: int | None = 0
    stop_at: int = 0
    acknowledged: bool = False
    leaving: bool = False
    lost: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision: its stored share in percent, and the bounds of its replicas."""

    number: int
    percent: int
    start_timeout: int = 1_800_000
    drain_timeout: int = 300_000
    # No replica is made before then.
    retry_at: int = 0
    # Starts in a row that failed before one was ready.
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Create:
    """Makes replicas of a revision."""

    revision: int
    number: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Takes a replica out of the table, and stops it at `until` at the latest."""

    session_id: uuid.UUID
    until: int
    message: str


@dataclass(frozen=True, slots=True)
class CallBack:
    """Puts a draining replica into the table again."""

    session_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends a replica's session; `failed` when it was never ready."""

    session_id: uuid.UUID
    message: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class SetTraffic:
    """Stores shares of revisions, in percent."""

    shares: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MoveRollout:
    """Moves a rollout."""

    state: RolloutState
    step: int
    message: str


Action: TypeAlias = Create | Drain | CallBack | Stop | SetTraffic | MoveRollout


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas of an endpoint with all that a plan looks at. `gated`: every live router holds new requests."""

    target: int
    revisions: Mapping[int, Revision]
    replicas: Sequence[Replica]
    now: int
    gated: bool = False

    def of(self, numbers: Collection[int]) -> list[Replica]:
        """Returns the replicas of revisions that count, newest first."""
        found = [
            item
            for item in self.replicas
            if item.revision in numbers and item.state in SERVING and not item.lost and not self.is_overdue(item)
        ]
        return sorted(found, key=lambda item: -item.serial)

    def is_overdue(self, replica: Replica) -> bool:
        """Returns whether a replica has not become ready in time."""
        if replica.held:
            return False
        if replica.state is ReplicaState.UNREADY:
            return self.now - replica.since >= UNREADY_MS
        limit = self.revisions[replica.revision].start_timeout
        return (
            replica.state is ReplicaState.STARTING
            and replica.running_since is not None
            and self.now - replica.running_since >= limit
        )


@dataclass(frozen=True, slots=True)
class Want:
    """What is wanted of one revision: `number` replicas, none made when `refill` is not set;
    at most `surge` more while some are replaced.
    """

    number: int
    refill: bool = True
    surge: int = 1


@dataclass(slots=True)
class Draft:
    """Actions while they are planned. `spare` is how many replicas are ready beyond the target once they are done."""

    fleet: Fleet
    actions: list[Action] = field(default_factory=list)
    spare: int = 0

    def __post_init__(self) -> None:
        """Counts what is ready."""
        self.spare = sum(ready_counts(self.fleet.replicas).values()) - self.fleet.target

    def drain(self, replica: Replica, message: str) -> None:
        """Drains a replica; one that was never in the table is stopped."""
        if replica.state is ReplicaState.STARTING:
            self.actions.append(Stop(replica.session_id, message))
        else:
            self.spare -= replica.state is ReplicaState.READY and not replica.lost
            until = self.fleet.now + self.fleet.revisions[replica.revision].drain_timeout
            self.actions.append(Drain(replica.session_id, until, message))

    def converge(self, number: int, want: Want) -> None:
        """Brings one revision to what is wanted of it."""
        mine = self.fleet.of([number])
        staying = [item for item in mine if not item.leaving]
        missing = min(want.number - len(staying), want.number + want.surge - len(mine))
        if want.refill and missing > 0:
            self._add(number, missing)
        self.drain_spare(ranked(staying)[: max(0, len(staying) - want.number)], FEWER)
        ready = sum(item.state is ReplicaState.READY for item in mine)
        for item in ranked(item for item in mine if item.leaving):
            if item.state is not ReplicaState.READY:
                self.drain(item, "its agent drains")
            elif ready > want.number and self.spare > 0:
                ready -= 1
                self.drain(item, "its agent drains, and another replica is ready")

    def add(self, number: int, wanted: int) -> None:
        """Brings one revision to at least so many replicas."""
        missing = wanted - len(self.fleet.of([number]))
        if missing > 0:
            self._add(number, missing)

    def drain_spare(self, replicas: Iterable[Replica], message: str, *, unavailable: int = 0) -> None:
        """Drains replicas: those that are not ready at once, those that are ready while so
        many of the target are left.
        """
        for item in ranked(replicas):
            if item.state is not ReplicaState.READY or self.spare + unavailable > 0:
                self.drain(item, message)

    def _add(self, number: int, missing: int) -> None:
        draining = [
            item
            for item in self.fleet.replicas
            if item.revision == number and item.state is ReplicaState.DRAINING and not item.leaving and not item.lost
        ]
        stopped = {action.session_id for action in self.actions if isinstance(action, Stop)}
        callable_back = [item for item in draining if item.session_id not in stopped]
        # The one with most requests has most to do still.
        callable_back.sort(key=lambda item: (-(item.requests or 0), item.serial))
        self.actions += [CallBack(item.session_id) for item in callable_back[:missing]]
        rest = missing - len(callable_back)
        if rest > 0 and self.fleet.now >= self.fleet.revisions[number].retry_at:
            self.actions.append(Create(number, rest))


def end_reason(why: str, lifecycle: Lifecycle) -> SessionReason:
    """Returns the reason of a replica's session that ends; `why` is what it was drained or stopped for."""
    if lifecycle is not Lifecycle.ACTIVE:
        return SessionReason.ENDPOINT_DELETED
    return SessionReason.SCALED_DOWN if why in {FEWER, NONE} else SessionReason.REPLACED


def finish(draft: Draft) -> None:
    """Stops what has drained, and what did not become ready in time."""
    fleet = draft.fleet
    for item in fleet.replicas:
        if item.state is ReplicaState.DRAINING:
            if item.acknowledged and (item.requests == 0 or fleet.now >= item.stop_at):
                message = "it has no requests" if item.requests == 0 else "its time to drain has passed"
                draft.actions.append(Stop(item.session_id, message))
            elif fleet.now >= item.stop_at + SILENCE_MS:
                draft.actions.append(Stop(item.session_id, "its time to drain has passed"))
        elif item.state in SERVING and fleet.is_overdue(item):
            if item.state is ReplicaState.STARTING:
                draft.actions.append(Stop(item.session_id, "it was not ready in time", failed=True))
            else:
                draft.drain(item, "it has not been ready for 10 minutes")


def ranked(replicas: Iterable[Replica]) -> list[Replica]:
    """Returns replicas in the order in which they go: not ready, starting (newest first), on a draining agent,
    then the least busy.
    """

    def rank(item: Replica) -> tuple[int, int, int]:
        if item.state is ReplicaState.UNREADY:
            return 0, 0, -item.serial
        if item.state is ReplicaState.STARTING:
            return 1, 0, -item.serial
        return (2 if item.leaving else 3), item.requests or 0, -item.serial

    return sorted(replicas, key=rank)


def goals(target: int, shares: Mapping[int, int]) -> dict[int, int]:
    """Returns how many replicas each revision has for its share: by largest remainder,
    at least one where there is a share and a target.
    """
    weighted = {number: share for number, share in shares.items() if share > 0}
    if target == 0 or not weighted:
        return dict.fromkeys(weighted, 0)
    return {number: max(1, count) for number, count in divided(target, weighted).items()}


def divided(whole: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Divides a number by weights, of which one at least is above 0, to the whole by largest remainder;
    of equals the lowest number first.
    """
    total = sum(weights.values())
    parts = {number: whole * weight // total for number, weight in weights.items()}
    rest = whole - sum(parts.values())
    order = sorted(weights, key=lambda number: (-(whole * weights[number] % total), number))
    for number in order[:rest]:
        parts[number] += 1
    return parts


def ready_counts(replicas: Iterable[Replica]) -> dict[int, int]:
    """Returns the number of replicas that are ready by revision."""
    counts: dict[int, int] = {}
    for item in replicas:
        if item.state is ReplicaState.READY and not item.lost:
            counts[item.revision] = counts.get(item.revision, 0) + 1
    return counts
