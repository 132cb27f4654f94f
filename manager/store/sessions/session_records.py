"""Sessions and kernels as the store returns them.

A state, type or result that only another version of the manager knows is None:
readers that need it leave the session alone.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from retinue.manager.domain.session.events import (
    Condition,
    PulledBytes,
    SessionCreated,
    parse_conditions,
    parse_pulled_bytes,
)
from retinue.manager.domain.session.explanation import NO_EXPLANATION, StoredExplanation, parse_explanation
from retinue.manager.domain.session.final_usage import FinalUsage, parse_final_usage
from retinue.manager.domain.session.images import NO_IMAGE, SeenImage, parse_image
from retinue.manager.domain.session.spec_codec import DecodedSpec, UnreadableSpec, decode, known_part
from retinue.manager.domain.session.states import Goal, KernelState, Observed, Result, SessionState, SessionType

if TYPE_CHECKING:
    from retinue.manager.domain.session.spec import SessionSpec
    from retinue.manager.store.postgres.recordset import Row

TYPES: Mapping[str, SessionType] = {item.value: item for item in SessionType}
STATES: Mapping[str, SessionState] = {item.value: item for item in SessionState}
RESULTS: Mapping[str, Result] = {item.value: item for item in Result}
KERNEL_STATES: Mapping[str, KernelState] = {item.value: item for item in KernelState}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session. What follows `end_time` is not read for lists."""

    id: uuid.UUID
    number: int
    name: str
    owner: str
    project: str
    resource_group: str
    type: SessionType | None
    spec: DecodedSpec
    state: SessionState | None
    result: Result | None
    exit_code: int | None
    reason: str
    message: str
    conditions: tuple[Condition, ...]
    network: str
    retries: int
    version: int
    create_time: dt.datetime | None
    schedule_time: dt.datetime | None = None
    start_time: dt.datetime | None = None
    end_time: dt.datetime | None = None
    priority: int = 0
    explanation: StoredExplanation = NO_EXPLANATION
    tries: int = 0
    failed_starts: int = 0
    failed_agents: Sequence[str] = ()
    force: bool = False
    evaluate_time: dt.datetime | None = None
    next_try_time: dt.datetime | None = None
    expire_time: dt.datetime | None = None

    @property
    def known_spec(self) -> SessionSpec:
        """Returns the spec, with defaults in place of what cannot be read."""
        return known_part(self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """A kernel with the goal, the observed state and the end of its newest attempt; amounts are in smallest units.

    Without an attempt these mean nothing.
    """

    id: uuid.UUID
    role: str
    role_index: int
    local_rank: int
    hostname: str
    slots: Mapping[str, int]
    state: KernelState | None
    agent_id: str | None = None
    epoch: int = 0
    address: str = ""
    exit_code: int | None = None
    reason: str = ""
    # None when it cannot be read.
    image: SeenImage | None = NO_IMAGE
    pull: PulledBytes | None = None
    goal: Goal | None = Goal.HELD
    observed: Observed | None = Observed.UNKNOWN
    attempt_ended: bool = True
    # When that attempt ended: as its agent observed it, else when that was committed.
    end_time: dt.datetime | None = None
    # What it had used then, if it was measured.
    usage: FinalUsage | None = None


# What a kernel's record is made of, beside its attempt.
KERNEL_COLUMNS = (
    "id",
    "session_id",
    "role",
    "role_index",
    "local_rank",
    "hostname",
    "slots",
    "state",
    "agent_id",
    "epoch",
    "address",
    "exit_code",
    "reason",
    "image_digest",
    "image_id",
    "service_ports",
    "pull",
)

_DETAILS = (
    "priority",
    "tries",
    "failed_starts",
    "failed_agents",
    "force",
    "evaluate_time",
    "next_try_time",
    "expire_time",
)


def listed_session(row: Row) -> SessionRecord:
    """Returns the session of a row of a list."""
    return SessionRecord(**_shown(row))


def session(row: Row) -> SessionRecord:
    """Returns the session of a whole row."""
    return SessionRecord(
        **_shown(row), explanation=parse_explanation(row["explanation"]), **{name: row[name] for name in _DETAILS}
    )


def _shown(row: Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "number": row["number"],
        "name": row["name"],
        "owner": row["owner"],
        "project": row["project"],
        "resource_group": row["resource_group"],
        "type": TYPES.get(row["type"]),
        "spec": decode(row["spec"]),
        "state": STATES.get(row["state"]),
        "result": RESULTS.get(row["result"]),
        "exit_code": row["exit_code"],
        "reason": row["reason"],
        "message": row["message"],
        "conditions": parse_conditions(row["conditions"]),
        "network": row["network"],
        "retries": row["retries"],
        "version": row["version"],
        "create_time": row["create_time"],
        "schedule_time": row["schedule_time"],
        "start_time": row["start_time"],
        "end_time": row["end_time"],
    }


def kernels_by_session(rows: Iterable[Row]) -> dict[uuid.UUID, list[KernelRecord]]:
    """Returns the kernels of sessions, in the order of the rows."""
    kernels: dict[uuid.UUID, list[KernelRecord]] = {}
    for row in rows:
        kernels.setdefault(row["session_id"], []).append(_kernel(row))
    return kernels


def _kernel(row: Row) -> KernelRecord:
    return KernelRecord(
        id=row["id"],
        role=row["role"],
        role_index=row["role_index"],
        local_rank=row["local_rank"],
        hostname=row["hostname"],
        slots=row["slots"],
        state=KERNEL_STATES.get(row["state"]),
        agent_id=row["agent_id"],
        epoch=row["epoch"],
        address=row["address"],
        exit_code=row["exit_code"],
        reason=row["reason"],
        image=parse_image(row["image_digest"], row["image_id"], row["service_ports"]),
        pull=parse_pulled_bytes(row["pull"]),
        goal=_GOALS.get(row["goal"] or Goal.HELD),
        observed=_OBSERVED.get(row["observed"] or ""),
        attempt_ended=row["attempt_ended"],
        end_time=row["attempt_end_time"],
        usage=parse_final_usage(row["attempt_usage"]),
    )


def created_session(created: SessionCreated, create_time: dt.datetime | None) -> SessionRecord:
    """Returns a session as it was created."""
    session = created.session
    return SessionRecord(
        id=session.id,
        number=session.number,
        name=session.name,
        owner=session.owner,
        project=session.project,
        resource_group=session.resource_group,
        type=TYPES.get(session.type),
        # Others may share it: see `NewSession`.
        spec=created.spec if isinstance(created.spec, UnreadableSpec) else replace(created.spec, name=session.name),
        state=SessionState.PENDING,
        result=Result.UNDEFINED,
        exit_code=None,
        reason=created.reason,
        message=created.message,
        conditions=(),
        network="",
        retries=0,
        version=1,
        create_time=create_time,
    )


def created_kernels(created: SessionCreated) -> list[KernelRecord]:
    """Returns the kernels of a session as they were created."""
    return [
        KernelRecord(
            id=kernel.id,
            role=kernel.role,
            role_index=kernel.role_index,
            local_rank=kernel.local_rank,
            hostname=kernel.hostname,
            slots=kernel.slots,
            state=KernelState.PENDING,
        )
        for kernel in created.kernels
    ]


_GOALS: Mapping[str, Goal] = {item.value: item for item in Goal}
_OBSERVED: Mapping[str, Observed] = {item.value: item for item in Observed}
