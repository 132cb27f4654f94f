"""Converts enum values to the short names that people use: `RUNNING` for `SESSION_STATE_RUNNING`, `multi-node` for
`CLUSTER_MODE_MULTI_NODE`.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from retinue.client.errors import UsageError
from retinue.manager.v1 import account_service_pb2, fleet_service_pb2, idle_pb2, session_pb2, session_service_pb2
from retinue.types.v1 import isolation_pb2, pull_policy_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.message import Message


def name_of(enum: EnumDescriptor, number: int) -> str:
    """Returns the value's name without the enum's prefix; a value of a newer server is `UNKNOWN_n`."""
    value = enum.values_by_number.get(number)
    if value is None:
        return f"UNKNOWN_{number}"
    return value.name.removeprefix(_prefix(enum))


def number(enum: EnumDescriptor, text: str) -> int:
    """Returns the value of a name, the inverse of `name_of`; case does not matter, `-` is as good as `_`.
    Raises UsageError with the choices.
    """
    name = text.strip().upper().replace("-", "_")
    value = enum.values_by_name.get(_prefix(enum) + name) or enum.values_by_name.get(name)
    if value is None or value.number == 0:
        choices = [choice.name.removeprefix(_prefix(enum)) for choice in enum.values if choice.number != 0]
        # States are shown in capitals; what people choose is written as options are.
        shown = choices if enum is SESSION_STATE else [choice.lower().replace("_", "-") for choice in choices]
        near = difflib.get_close_matches(text.strip().lower(), [choice.lower() for choice in shown], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{text!r} is not one of {', '.join(shown)}{hint}")
    return value.number


def _prefix(enum: EnumDescriptor) -> str:
    return enum.values[0].name.removesuffix("UNSPECIFIED")


SESSION_TYPE = session_pb2.SessionType.DESCRIPTOR
CLUSTER_MODE = session_pb2.ClusterMode.DESCRIPTOR
AGENT_CHOICE = session_pb2.AgentChoice.DESCRIPTOR
REPLICA_PLACEMENT = session_pb2.ReplicaPlacement.DESCRIPTOR
SESSION_STATE = session_pb2.SessionState.DESCRIPTOR
SESSION_RESULT = session_pb2.SessionResult.DESCRIPTOR
ACCESS_METHOD = session_pb2.AccessMethod.DESCRIPTOR
ISOLATION = isolation_pb2.Isolation.DESCRIPTOR
PULL_POLICY = pull_policy_pb2.PullPolicy.DESCRIPTOR
KERNEL_STATE = session_pb2.KernelState.DESCRIPTOR
NETWORK_KIND = session_pb2.NetworkKind.DESCRIPTOR
REASON_TIER = session_service_pb2.ReasonTier.DESCRIPTOR
AGENT_STATE = fleet_service_pb2.AgentState.DESCRIPTOR
ROUTER_STATE = fleet_service_pb2.RouterState.DESCRIPTOR
AGENT_CONDITION = fleet_service_pb2.AgentConditionType.DESCRIPTOR
QUOTA_KIND = account_service_pb2.QuotaKind.DESCRIPTOR
LEDGER_KIND = fleet_service_pb2.LedgerKind.DESCRIPTOR
USER_ROLE = account_service_pb2.UserRole.DESCRIPTOR
PROJECT_ROLE = account_service_pb2.ProjectRole.DESCRIPTOR
AUDIT_CATEGORY = account_service_pb2.AuditCategory.DESCRIPTOR
AUDIT_PRINCIPAL_KIND = account_service_pb2.AuditPrincipalKind.DESCRIPTOR
IDLE_CHECKER = idle_pb2.IdleChecker.DESCRIPTOR
IDLE_JOIN = idle_pb2.IdleJoin.DESCRIPTOR
IDLE_STATUS = idle_pb2.IdleStatus.DESCRIPTOR

ENDED_STATES = frozenset({session_pb2.SESSION_STATE_TERMINATED, session_pb2.SESSION_STATE_CANCELLED})
"""States that a session never leaves."""


def state_of(session: session_pb2.Session) -> str:
    """Returns the name of a session's state."""
    return name_of(SESSION_STATE, session.state)


def is_ended(session: session_pb2.Session) -> bool:
    """Returns True once the session has ended."""
    return session.state in ENDED_STATES


def time_of(message: Message, field: str) -> float | None:
    """Returns a Timestamp field as seconds since 1970; None when unset."""
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    return float(value.seconds) + float(value.nanos) / 1e9
