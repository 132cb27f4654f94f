"""The words of the contract's enums, for type checkers and completion in editors; a test compares them with the
protos.

What callers give is taken in any case, with `-` or `_`. A word of a newer server, `UNKNOWN_9`, is in none of the types.
"""

from __future__ import annotations

import datetime as dt
from typing import Literal

SessionType = Literal["interactive", "batch", "inference", "system"]
ClusterMode = Literal["single-node", "multi-node"]
Isolation = Literal["process", "container", "vm"]
PullPolicy = Literal["always", "missing", "never"]
AgentChoice = Literal["preferred", "strict"]
ReplicaPlacement = Literal["spread", "pack"]
UserRole = Literal["user", "admin"]
ProjectRole = Literal["member", "admin"]
QuotaKind = Literal["user", "project", "resource-group"]
IdleChecker = Literal["interaction", "utilization", "lifetime"]
Egress = Literal["allow", "deny"]
SessionState = Literal["PENDING", "SCHEDULED", "PREPARING", "RUNNING", "TERMINATING", "TERMINATED", "CANCELLED"]
SessionResult = Literal["UNDEFINED", "SUCCESS", "FAILED"]
CodeStatus = Literal["OK", "ERROR", "INTERRUPTED", "TIMED_OUT", "PROCESS_LOST"]
LogStream = Literal["stdout", "stderr", ""]

Span = float | dt.timedelta
"""A length of time: a number is seconds."""


def seconds_of(span: Span) -> float:
    """Returns a length of time as seconds."""
    return span.total_seconds() if isinstance(span, dt.timedelta) else span
