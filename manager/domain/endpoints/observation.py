"""Says what state a replica and an endpoint are in: functions of what is seen of sessions, probes and counts. Pure."""

from __future__ import annotations

from retinue.manager.domain.endpoints.states import EndpointState, Lifecycle, ReplicaState
from retinue.manager.domain.session.states import ENDED_SESSION_STATES, SessionState

# An endpoint with fewer ready replicas than wanted for so long is degraded.
DEGRADED_MS = 60_000
HEALTHY = ("", "READY")


def replica_state(
    stored: ReplicaState, session: SessionState | None, health: str, *, lost: bool = False, published: bool = True
) -> ReplicaState:
    """Returns the state of a replica: its session decides, then what was done with it, then its probe.

    Without a probe (`health` empty) it is ready as soon as its session runs and its port is `published`: no request
    reaches it before. A session state that is not known changes nothing of a replica that can be reached.
    """
    reachable = published and not lost
    if session is None or stored is ReplicaState.GONE:
        return ReplicaState.UNREADY if stored is ReplicaState.READY and not reachable else stored
    if session in ENDED_SESSION_STATES:
        return ReplicaState.GONE
    if session is SessionState.TERMINATING or stored is ReplicaState.STOPPING:
        return ReplicaState.STOPPING
    if stored is ReplicaState.DRAINING:
        return stored
    if session is SessionState.RUNNING and health in HEALTHY and reachable:
        return ReplicaState.READY
    return ReplicaState.STARTING if stored is ReplicaState.STARTING else ReplicaState.UNREADY


def endpoint_state(  # one for each state
    lifecycle: Lifecycle, *, target: int, ready: int, was_ready: bool, updating: bool, short_ms: int | None
) -> EndpointState:
    """Returns the state that is shown; `short_ms` is for how long fewer have been ready than wanted,
    None when they are not.
    """
    if lifecycle is not Lifecycle.ACTIVE:
        return EndpointState(lifecycle)
    if target == 0:
        return EndpointState.ASLEEP
    if ready == 0:
        return EndpointState.UNAVAILABLE if was_ready else EndpointState.CREATING
    if updating:
        return EndpointState.UPDATING
    if short_ms is not None and short_ms >= DEGRADED_MS:
        return EndpointState.DEGRADED
    return EndpointState.READY
