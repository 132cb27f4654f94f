"""Inserts, reads and moves the replicas of endpoints, each with what its session is now."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    Executable,
    Float,
    Integer,
    Select,
    Text,
    Uuid,
    case,
    column,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy import insert as insert_into

from retinue.manager.domain.endpoints.states import ReplicaState
from retinue.manager.domain.session.states import SessionState
from retinue.manager.store.postgres.constructs import (
    Construct,
    objects,
    one_of,
    parameter,
    span,
    table_of,
    word,
    words,
)
from retinue.manager.store.postgres.database import Statement
from retinue.manager.store.postgres.recordset import Row, fetched, recordset
from retinue.manager.store.sessions.session_records import STATES
from retinue.manager.store.tables import Agent, EndpointReplica, Kernel, KernelLog, Session
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.probes import PublishedStatus


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """A replica with what its session is now. `images` are what images were found to be: digest and id by reference.

    `session_state` is None for a state that only another version knows.
    `agent_state` and `agent_drained` are those of main1's agent, and `agent_held` whether its loss is held.
    """

    session_id: uuid.UUID
    endpoint_id: uuid.UUID
    revision: int
    serial: int
    state: ReplicaState
    since_time: dt.datetime
    drain_time: dt.datetime | None
    was_ready: bool
    message: str
    health: str
    health_message: str
    address: str
    port: int
    session_name: str
    session_state: SessionState | None
    session_reason: str
    session_message: str
    start_time: dt.datetime | None
    epoch: int
    agent_id: str
    agent_state: str
    agent_drained: bool
    agent_held: bool
    image: str
    image_digest: str
    image_id: str


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """A replica that moves to a state."""

    session_id: uuid.UUID
    state: ReplicaState
    message: str
    drain_seconds: float | None = None


_agent, _kernel, _log = table_of(Agent), table_of(Kernel), table_of(KernelLog)
_replicas, _session = table_of(EndpointReplica), table_of(Session)


def _making_read() -> Select[*tuple[Any, ...]]:
    failed = _replicas.alias("failed")
    newest_failed = (
        select(failed.c.session_id)
        .where(
            failed.c.endpoint_id == _replicas.c.endpoint_id, failed.c.state == word("GONE"), not_(failed.c.was_ready)
        )
        .order_by(failed.c.serial.desc())
        .limit(parameter("gone", Integer()))
        .correlate(_replicas)
    )
    own = [_replicas.c[field.name] for field in fields(ReplicaRecord) if field.name in _replicas.c]
    is_held = _agent.c.found_conditions.contains([{"type": AgentConditionType.LOSS_HELD}])
    return (
        select(
            *own,
            _session.c.name.label("session_name"),
            _session.c.state.label("session_state"),
            _session.c.reason.label("session_reason"),
            _session.c.message.label("session_message"),
            _session.c.start_time,
            _kernel.c.epoch,
            func.coalesce(_kernel.c.agent_id, word("")).label("agent_id"),
            func.coalesce(_agent.c.state, word("")).label("agent_state"),
            func.coalesce(_agent.c.drained, false()).label("agent_drained"),
            func.coalesce(is_held, false()).label("agent_held"),
            _kernel.c.image,
            _kernel.c.image_digest,
            _kernel.c.image_id,
        )
        .join_from(_replicas, _session, _session.c.id == _replicas.c.session_id)
        .join(_kernel, _kernel.c.id == _replicas.c.session_id)
        .outerjoin(_agent, _agent.c.id == _kernel.c.agent_id)
        .where(
            _replicas.c.endpoint_id == one_of("ids", Uuid()),
            or_(_replicas.c.state != word("GONE"), _replicas.c.session_id.in_(newest_failed)),
        )
        .order_by(_replicas.c.serial)
    )


_READ = _making_read()


async def read(
    tx: AsyncSession, endpoint_ids: Collection[uuid.UUID], *, gone: int = 0
) -> dict[uuid.UUID, list[ReplicaRecord]]:
    """Returns the replicas of endpoints in the order in which they were made,
    and the newest `gone` of those that failed before they were ready.
    """
    rows = await tx.execute(_READ, {"ids": list(endpoint_ids), "gone": gone})
    replicas: dict[uuid.UUID, list[ReplicaRecord]] = {}
    for row in fetched(rows):
        replicas.setdefault(row["endpoint_id"], []).append(_replica(row))
    return replicas


def _replica(row: Row) -> ReplicaRecord:
    # One in no known state is ended and replaced.
    states = {state.value: state for state in ReplicaState}
    state = states.get(row["state"], ReplicaState.STOPPING)
    return ReplicaRecord(**{**row, "state": state, "session_state": STATES.get(row["session_state"])})


async def insert(tx: AsyncSession, endpoint_id: uuid.UUID, revision: int, session_ids: Sequence[uuid.UUID]) -> None:
    """Makes sessions replicas of a revision."""
    ids = sql_cast(literal(list(session_ids), ARRAY(Uuid)), ARRAY(Uuid))
    made = func.unnest(ids).table_valued(column("id", Uuid()), with_ordinality="position").render_derived(name="made")
    new = select(
        made.c.id, literal(endpoint_id), literal(revision), word("STARTING"), false(), *[word("")] * 4, literal(0)
    )
    columns = [
        "session_id",
        "endpoint_id",
        "revision",
        "state",
        "was_ready",
        "message",
        "health",
        "health_message",
        "address",
        "port",
    ]
    ordered = new.order_by(made.c.position)
    await tx.execute(insert_into(_replicas).from_select(columns, ordered, include_defaults=False))


def _making_published() -> Construct:
    columns = _replicas.c
    r = objects("r", "rows", id=Uuid(), health=Text(), message=Text(), address=Text(), port=Integer())
    return Construct(
        update(_replicas)
        .where(columns.session_id == r.c.id)
        .values(
            address=r.c.address,
            port=r.c.port,
            health=func.coalesce(r.c.health, columns.health),
            health_message=case((r.c.health.is_(None), columns.health_message), else_=r.c.message),
        )
    )


_PUBLISHED = _making_published()


def recording_published(statuses: Mapping[uuid.UUID, PublishedStatus]) -> Statement:
    """Records what agents report of the published ports of replicas, by session;
    a health that is not known leaves that which was.
    """
    rows = [
        {"id": key, "health": item.health, "message": item.message, "address": item.address, "port": item.port}
        for key, item in statuses.items()
    ]
    return Statement(_PUBLISHED, {"rows": recordset(rows)})


async def pin_images(tx: AsyncSession, session_ids: Sequence[uuid.UUID], found: Mapping[str, Sequence[str]]) -> None:
    """Gives the kernels of sessions the images that the references of their requests were found to be."""
    f = objects("f", "rows", reference=Text(), digest=Text(), id=Text())
    pinned = update(_kernel).where(_kernel.c.session_id == one_of("ids", Uuid()), _kernel.c.image == f.c.reference)
    rows = [{"reference": reference, "digest": image[0], "id": image[1]} for reference, image in found.items()]
    await tx.execute(
        pinned.values(image_digest=f.c.digest, image_id=f.c.id), {"ids": list(session_ids), "rows": recordset(rows)}
    )


def _making_moved() -> Executable:
    columns = _replicas.c
    types = {field.name: columns[field.name].type for field in fields(ReplicaMove) if field.name in columns}
    r = objects("r", "rows", **types, drain_seconds=Float())
    drains = r.c.drain_seconds.is_not(None)
    return (
        update(_replicas)
        .where(columns.session_id == r.c.session_id)
        .values(
            state=r.c.state,
            message=r.c.message,
            since_time=func.now(),
            was_ready=or_(columns.was_ready, r.c.state == word("READY")),
            drain_time=case(
                (drains, func.now() + span(r.c.drain_seconds)),
                (r.c.state.in_(words("STOPPING", "GONE")), columns.drain_time),
            ),
        )
    )


_MOVED = _making_moved()


async def move(tx: AsyncSession, moves: Iterable[ReplicaMove]) -> None:
    """Moves replicas; each that is READY has been ready. The time of a drain stays when a replica stops,
    and goes when it is called back.
    """
    await tx.execute(_MOVED, {"rows": recordset(moves)})


async def read_last_output(tx: AsyncSession, session_id: uuid.UUID, limit: int) -> bytes:
    """Returns the end of the kept output of a session's main kernel."""
    begin = func.greatest(1, func.length(_log.c.data) - limit + 1)
    query = select(func.substring(_log.c.data, begin)).where(_log.c.kernel_id == session_id)
    found = await tx.execute(query.order_by(_log.c.epoch.desc()).limit(1))
    return bytes(found.scalar_one_or_none() or b"")
