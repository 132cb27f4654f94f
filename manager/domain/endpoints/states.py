"""The states of endpoints, rollouts and replicas, and the moves that are allowed. Data, as in `session.states`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Lifecycle(StrEnum):
    """The stored life of an endpoint."""

    ACTIVE = "ACTIVE"
    DELETING = "DELETING"
    DELETED = "DELETED"


class RolloutState(StrEnum):
    """The state of the change from one revision to another."""

    PROGRESSING = "PROGRESSING"
    PAUSED = "PAUSED"
    DONE = "DONE"
    ROLLING_BACK = "ROLLING_BACK"
    ROLLED_BACK = "ROLLED_BACK"


class ReplicaState(StrEnum):
    """The state of a replica, derived from its session, its probe and the routers' reports."""

    STARTING = "STARTING"
    READY = "READY"
    UNREADY = "UNREADY"
    DRAINING = "DRAINING"
    STOPPING = "STOPPING"
    GONE = "GONE"


class EndpointState(StrEnum):
    """The state that is shown, a function of counts."""

    CREATING = "CREATING"
    READY = "READY"
    UPDATING = "UPDATING"
    DEGRADED = "DEGRADED"
    ASLEEP = "ASLEEP"
    UNAVAILABLE = "UNAVAILABLE"
    DELETING = "DELETING"
    DELETED = "DELETED"


LIFECYCLE_MOVES: Mapping[Lifecycle, frozenset[Lifecycle]] = {
    Lifecycle.ACTIVE: frozenset({Lifecycle.DELETING}),
    Lifecycle.DELETING: frozenset({Lifecycle.DELETED}),
    Lifecycle.DELETED: frozenset(),
}
ROLLOUT_MOVES: Mapping[RolloutState, frozenset[RolloutState]] = {
    RolloutState.PROGRESSING: frozenset({RolloutState.PAUSED, RolloutState.DONE, RolloutState.ROLLING_BACK}),
    RolloutState.PAUSED: frozenset({RolloutState.PROGRESSING, RolloutState.DONE, RolloutState.ROLLING_BACK}),
    RolloutState.DONE: frozenset(),
    RolloutState.ROLLING_BACK: frozenset({RolloutState.ROLLED_BACK}),
    RolloutState.ROLLED_BACK: frozenset(),
}
_SERVING = {ReplicaState.STARTING, ReplicaState.READY, ReplicaState.UNREADY}
REPLICA_MOVES: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.STARTING: frozenset(
        {ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPING, ReplicaState.GONE}
    ),
    ReplicaState.READY: frozenset({ReplicaState.UNREADY, ReplicaState.DRAINING, ReplicaState.GONE}),
    ReplicaState.UNREADY: frozenset({ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.GONE}),
    # Called back before it was stopped: to what its probe says.
    ReplicaState.DRAINING: frozenset({*_SERVING, ReplicaState.STOPPING, ReplicaState.GONE}),
    ReplicaState.STOPPING: frozenset({ReplicaState.GONE}),
    ReplicaState.GONE: frozenset(),
}
FINISHED_ROLLOUTS = frozenset({RolloutState.DONE, RolloutState.ROLLED_BACK})
# Replicas that count for the target.
SERVING = frozenset(_SERVING)
