"""The states of sessions and kernels and every move between them, as data.

The diagrams in the documentation are made from these tables, and nothing else in the manager
decides what may follow what.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class SessionState(StrEnum):
    """State of a session."""

    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    CANCELLED = "CANCELLED"


class KernelState(StrEnum):
    """State of a kernel."""

    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    PULLING = "PULLING"
    CREATING = "CREATING"
    RUNNING = "RUNNING"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    CANCELLED = "CANCELLED"


class SessionType(StrEnum):
    """The type of a session: its purpose."""

    INTERACTIVE = "INTERACTIVE"
    BATCH = "BATCH"
    INFERENCE = "INFERENCE"
    SYSTEM = "SYSTEM"


class Result(StrEnum):
    """Outcome of a batch session."""

    UNDEFINED = "UNDEFINED"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"


class Goal(StrEnum):
    """Desired state of an attempt."""

    HELD = "HELD"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class Observed(StrEnum):
    """State of an attempt as its agent reports it; empty before the first report."""

    UNKNOWN = ""
    ACCEPTED = "ACCEPTED"
    PULLING = "PULLING"
    CREATING = "CREATING"
    HELD = "HELD"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    EXITED = "EXITED"
    FAILED = "FAILED"


_S, _K = SessionState, KernelState

# A placed gang that cannot start everywhere goes back to PENDING as a whole,
# and so does a running one that makes way for another.
SESSION_MOVES: Mapping[SessionState, frozenset[SessionState]] = {
    _S.PENDING: frozenset({_S.SCHEDULED, _S.CANCELLED}),
    _S.SCHEDULED: frozenset({_S.PREPARING, _S.RUNNING, _S.PENDING, _S.TERMINATING, _S.CANCELLED}),
    _S.PREPARING: frozenset({_S.RUNNING, _S.PENDING, _S.TERMINATING, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.TERMINATING, _S.PENDING}),
    _S.TERMINATING: frozenset({_S.TERMINATED}),
    _S.TERMINATED: frozenset(),
    _S.CANCELLED: frozenset(),
}

# Reports say how far a kernel has come, so the moves in between may be passed over in one.
KERNEL_MOVES: Mapping[KernelState, frozenset[KernelState]] = {
    _K.PENDING: frozenset({_K.SCHEDULED, _K.CANCELLED}),
    _K.SCHEDULED: frozenset({_K.PULLING, _K.CREATING, _K.RUNNING, _K.PENDING, _K.TERMINATING, _K.CANCELLED}),
    _K.PULLING: frozenset({_K.CREATING, _K.RUNNING, _K.PENDING, _K.TERMINATING, _K.CANCELLED}),
    _K.CREATING: frozenset({_K.RUNNING, _K.PENDING, _K.TERMINATING, _K.CANCELLED}),
    _K.RUNNING: frozenset({_K.TERMINATING, _K.TERMINATED, _K.PENDING}),
    # One that ends before its session does waits here while the session may be run again.
    _K.TERMINATING: frozenset({_K.TERMINATED, _K.PENDING}),
    _K.TERMINATED: frozenset(),
    _K.CANCELLED: frozenset(),
}

# Who moves a session out of a state it would otherwise stay in, and what bounds the stay.
SESSION_OWNERS: Mapping[SessionState, tuple[str, str]] = {
    _S.PENDING: (
        "scheduler",
        "the group's option pending-timeout-seconds, if it is set, kept by deadlines; it has a current reason, and its owner may cancel it",
    ),
    _S.SCHEDULED: ("deadlines", "the resource group's start_timeout, then it is rolled back"),
    _S.PREPARING: ("deadlines", "the resource group's start_timeout, then it is rolled back"),
    _S.RUNNING: (
        "reports",
        "its time limit, if it has one, kept by deadlines, and the idle policy of its group; else it ends with its command, or by its owner",
    ),
    _S.TERMINATING: ("deadlines", "an agent's confirmation, or the loss of the agent"),
}

LIVE_SESSION_STATES = frozenset(state for state, moves in SESSION_MOVES.items() if moves)
ENDED_SESSION_STATES = frozenset(SESSION_MOVES) - LIVE_SESSION_STATES
LIVE_KERNEL_STATES = frozenset(state for state, moves in KERNEL_MOVES.items() if moves)
ENDED_KERNEL_STATES = frozenset(KERNEL_MOVES) - LIVE_KERNEL_STATES
# States in which a session is placed and not released yet.
STARTING_SESSION_STATES = frozenset({_S.SCHEDULED, _S.PREPARING})
STARTING_KERNEL_STATES = frozenset({_K.SCHEDULED, _K.PULLING, _K.CREATING})
ENDED_OBSERVATIONS = frozenset({Observed.EXITED, Observed.FAILED})
