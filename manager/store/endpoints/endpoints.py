"""Inserts, reads and changes endpoints: what is asked for of each, its target, its conditions and its floor."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pydantic import TypeAdapter
from sqlalchemy import (
    ColumnElement,
    DateTime,
    FromClause,
    Select,
    Text,
    Update,
    Uuid,
    and_,
    case,
    cast,
    column,
    delete,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert

from retinue.manager.domain.endpoints.bounds import checked
from retinue.manager.domain.endpoints.events import ENDPOINT_KINDS, TargetChanged, parse_decision
from retinue.manager.domain.endpoints.scaling import Decision
from retinue.manager.domain.endpoints.spec import MAX_REPLICAS, EndpointSettings, RevisionSpec
from retinue.manager.domain.endpoints.states import Lifecycle
from retinue.manager.domain.session.events import Condition, parse_conditions
from retinue.manager.store.endpoints import endpoint_revisions, endpoint_rollouts
from retinue.manager.store.endpoints.endpoint_revisions import RevisionRecord, encode_revision
from retinue.manager.store.endpoints.endpoint_rollouts import RolloutRecord
from retinue.manager.store.postgres.constructs import (
    EMPTY_LIST,
    columns_of,
    json_of,
    locking,
    objects,
    one_of,
    parameter,
    table_of,
    word,
)
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import Row, fetched, recordset
from retinue.manager.store.tables import (
    Agent,
    Endpoint,
    EndpointReplica,
    EndpointRevision,
    EndpointTraffic,
    Journal,
    Kernel,
    ScalingFloor,
    Session,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.store.sessions.visibility import Visibility

_SETTINGS = TypeAdapter(EndpointSettings)
SETTINGS = Decoder("the settings of an endpoint", lambda stored: checked(_SETTINGS.validate_python(stored)))
# Deleted endpoints are shown, and answer 410, for so long.
DELETED_HOURS = 24


@dataclass(frozen=True, slots=True)
class FloorRecord:
    """A floor under the number of replicas."""

    endpoint_id: uuid.UUID
    replicas: int
    end_time: dt.datetime


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """An endpoint with its newest rollout and its floor."""

    id: uuid.UUID
    name: str
    project: str
    owner: str
    resource_group: str
    host_label: str
    lifecycle: Lifecycle
    settings: EndpointSettings | Unreadable
    version: int
    newest_revision: int
    target: int
    target_reason: str
    decision: Decision | None
    conditions: tuple[Condition, ...]
    first_ready_time: dt.datetime | None
    short_time: dt.datetime | None
    create_time: dt.datetime
    delete_time: dt.datetime | None
    revisions: tuple[RevisionRecord, ...] = ()
    rollout: RolloutRecord | None = None
    floor: FloorRecord | None = None


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """An endpoint to be inserted, with its first revision."""

    id: uuid.UUID
    name: str
    project: str
    owner: str
    resource_group: str
    host_label: str
    settings: EndpointSettings
    target: int
    spec: RevisionSpec


_agent, _endpoint, _floor, _journal = table_of(Agent), table_of(Endpoint), table_of(ScalingFloor), table_of(Journal)
_kernel, _replica, _session = table_of(Kernel), table_of(EndpointReplica), table_of(Session)
_revision, _traffic = table_of(EndpointRevision), table_of(EndpointTraffic)
_IS_THERE = _endpoint.c.lifecycle != word("DELETED")
_IS_SHOWN = _endpoint.c.delete_time > func.now() - dt.timedelta(hours=DELETED_HOURS)


async def read_clock(tx: AsyncSession) -> dt.datetime:
    """Returns the time by the database, which all times of replicas and rollouts go by."""
    found: dt.datetime = (await tx.execute(select(func.now()))).scalar_one()
    return found


def _making_created() -> Select[tuple[uuid.UUID]]:
    """An endpoint with its first revision, which gets all requests."""
    columns = {field.name: _endpoint.c[field.name].type for field in fields(NewEndpoint) if field.name != "spec"}
    r = select(*objects("given", "rows", **columns, spec=_revision.c.spec.type).c).cte("r")
    made = (
        insert(_endpoint)
        .from_select(
            [*columns, "lifecycle", "version", "newest_revision", "target_reason"],
            select(*(r.c[name] for name in columns), word("ACTIVE"), literal(1), literal(1), word("")),
            include_defaults=False,
        )
        .on_conflict_do_nothing()
        .returning(_endpoint.c.id)
        .cte("made")
    )
    first = select(made.c.id, literal(1), r.c.spec, literal(0), r.c.owner).join_from(r, made, made.c.id == r.c.id)
    revised = insert(_revision).from_select(
        ["endpoint_id", "number", "spec", "failures", "author"], first, include_defaults=False
    )
    shared = insert(_traffic).from_select(
        ["endpoint_id", "revision", "percent"], select(made.c.id, literal(1), literal(100)), include_defaults=False
    )
    return select(made.c.id).add_cte(revised.cte("revised"), shared.cte("shared"))


_CREATED = _making_created()


async def create(tx: AsyncSession, new: NewEndpoint) -> bool:
    """Inserts an endpoint with its first revision, which gets all requests; returns whether its name was free."""
    made = await tx.execute(_CREATED, {"rows": recordset([{**_columns(new), "spec": encode_revision(new.spec)}])})
    return made.scalar_one_or_none() is not None


def _columns(new: NewEndpoint) -> dict[str, object]:
    return {field.name: getattr(new, field.name) for field in fields(new)}


async def find(tx: AsyncSession, reference: str, visibility: Visibility) -> list[uuid.UUID]:
    """Returns the endpoints that an id, a name, or `PROJECT/NAME` refers to; at most two."""
    if "\0" in reference:
        return []
    project, _, name = reference.rpartition("/")
    is_id = cast(_endpoint.c.id, Text) == reference.lower()
    is_named = and_(_IS_THERE, _endpoint.c.name == name)
    if project:
        is_named = and_(is_named, _endpoint.c.project == project)
    query = select(_endpoint.c.id).where(visibility.condition(_endpoint), or_(is_id, is_named))
    found = await tx.execute(query.order_by(is_id.desc()).limit(2), visibility.parameters())
    return list(found.scalars())


async def lock(tx: AsyncSession, endpoint_id: uuid.UUID) -> EndpointRecord | None:
    """Locks an endpoint until the commit, and returns it."""
    await tx.execute(select(_endpoint.c.id).where(_endpoint.c.id == endpoint_id).with_for_update())
    return (await read(tx, [endpoint_id])).get(endpoint_id)


_FLOORS = select(*columns_of(ScalingFloor, FloorRecord)).where(
    _floor.c.endpoint_id == one_of("ids", Uuid()), _floor.c.end_time > func.now()
)
_READ = select(*(_endpoint.c[field.name] for field in fields(EndpointRecord) if field.name in _endpoint.c)).where(
    _endpoint.c.id == one_of("ids", Uuid())
)


async def read(tx: AsyncSession, endpoint_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, EndpointRecord]:
    """Returns endpoints by their ids."""
    rows = fetched(await tx.execute(_READ, {"ids": list(endpoint_ids)}))
    if not rows:
        return {}
    ids = [row["id"] for row in rows]
    revisions = await endpoint_revisions.read_current(tx, ids)
    rollouts = await endpoint_rollouts.read(tx, ids)
    floors = {row["endpoint_id"]: FloorRecord(**row) for row in fetched(await tx.execute(_FLOORS, {"ids": ids}))}
    return {
        row["id"]: EndpointRecord(
            **{
                **row,
                **_lifecycle(row),
                # Whatever a row says, replicas are made one by one.
                "target": min(max(row["target"], 0), MAX_REPLICAS),
                "decision": parse_decision(row["decision"]),
                "conditions": parse_conditions(row["conditions"]),
            },
            revisions=revisions.get(row["id"], ()),
            rollout=rollouts.get(row["id"]),
            floor=floors.get(row["id"]),
        )
        for row in rows
    }


def _xmin(table: FromClause) -> ColumnElement[str]:
    """The transaction that wrote a row last."""
    return cast(literal_column(f"{table.description}.xmin"), Text)


def _making_marks() -> Select[tuple[uuid.UUID, int]]:
    of_replica = func.concat_ws(" ", _xmin(_replica), _xmin(_session), _agent.c.state, _agent.c.drained)
    replicas = (
        select(func.string_agg(of_replica, aggregate_order_by(literal_column("','"), _replica.c.serial)))
        .join_from(_replica, _session, _session.c.id == _replica.c.session_id)
        .join(_kernel, _kernel.c.id == _replica.c.session_id)
        .outerjoin(_agent, _agent.c.id == _kernel.c.agent_id)
        .where(_replica.c.endpoint_id == _endpoint.c.id, _replica.c.state != word("GONE"))
    )
    everything = func.concat_ws(
        " ", _xmin(_endpoint), _xmin(_floor), _floor.c.end_time > func.now(), replicas.scalar_subquery()
    )
    return (
        select(_endpoint.c.id, func.hashtextextended(everything, 0))
        .outerjoin_from(_endpoint, _floor, _floor.c.endpoint_id == _endpoint.c.id)
        .where(or_(_IS_THERE, _IS_SHOWN))
    )


_MARKS = _making_marks()


async def read_marks(tx: AsyncSession) -> dict[uuid.UUID, int]:
    """Returns all endpoints that are not deleted, and those that were less than a day ago, each with a number that
    differs when the endpoint, its floor, a replica that is not gone, its session or the state of its agent has changed.
    """
    rows = await tx.execute(_MARKS)
    return {row[0]: row[1] for row in rows}


async def list_page(  # what is listed, and where it begins
    tx: AsyncSession,
    visibility: Visibility,
    *,
    project: str,
    deleted: bool,
    after: tuple[str, str] | None,
    limit: int,
) -> list[EndpointRecord]:
    """Returns endpoints, newest first; `after` is (create time, id) of the one before."""
    query = select(_endpoint.c.id).where(
        visibility.condition(_endpoint), or_(_IS_THERE, _IS_SHOWN) if deleted else _IS_THERE
    )
    if project:
        query = query.where(_endpoint.c.project == project)
    place = tuple_(_endpoint.c.create_time, _endpoint.c.id)
    if after is not None:
        time, id_ = after
        query = query.where(place < tuple_(literal(time, DateTime(timezone=True)), literal(id_, Uuid())))
    query = query.order_by(_endpoint.c.create_time.desc(), _endpoint.c.id.desc()).limit(limit)
    found = await tx.execute(query, visibility.parameters())
    ids = list(found.scalars())
    records = await read(tx, ids)
    return [records[item] for item in ids if item in records]


def _lifecycle(row: Row) -> dict[str, object]:
    """Returns the lifecycle and the settings; an endpoint of an unknown lifecycle is one whose settings cannot be
    read: it stays as it is.
    """
    try:
        return {"lifecycle": Lifecycle(row["lifecycle"]), "settings": SETTINGS.decode(row["settings"])}
    except ValueError as error:
        return {"lifecycle": Lifecycle.ACTIVE, "settings": Unreadable(f"its lifecycle cannot be read: {error}")}


async def set_settings(tx: AsyncSession, endpoint_id: uuid.UUID, settings: EndpointSettings) -> None:
    """Replaces what is asked for of an endpoint."""
    stored = json_of(settings)
    await tx.execute(_changing(endpoint_id, settings=stored, version=_endpoint.c.version + 1))


async def touch(tx: AsyncSession, endpoint_id: uuid.UUID) -> None:
    """Counts a change of what is asked for."""
    await tx.execute(_changing(endpoint_id, version=_endpoint.c.version + 1))


def _changing(endpoint_id: uuid.UUID, **values: object) -> Update:
    return update(_endpoint).where(_endpoint.c.id == endpoint_id).values(**values)


async def set_lifecycle(tx: AsyncSession, endpoint_id: uuid.UUID, lifecycle: Lifecycle) -> None:
    """Moves an endpoint; the time at which it is deleted is now."""
    deleted = func.now() if lifecycle is Lifecycle.DELETED else None
    await tx.execute(_changing(endpoint_id, lifecycle=lifecycle, version=_endpoint.c.version + 1, delete_time=deleted))


async def set_target(tx: AsyncSession, endpoint_id: uuid.UUID, *, target: int, reason: str, decision: Decision) -> None:
    """Sets how many replicas are wanted, with the decision."""
    stored = json_of(decision)
    await tx.execute(_changing(endpoint_id, target=target, target_reason=reason, decision=stored))


async def set_condition(
    tx: AsyncSession, endpoint_id: uuid.UUID, *, conditions: Sequence[Condition], ready: bool, short: bool
) -> None:
    """Sets what is noteworthy of an endpoint, and since when fewer replicas are ready than wanted."""
    columns, now = _endpoint.c, func.now()
    await tx.execute(
        _changing(
            endpoint_id,
            conditions=json_of(conditions),
            first_ready_time=func.coalesce(columns.first_ready_time, now) if ready else columns.first_ready_time,
            short_time=func.coalesce(columns.short_time, now) if short else null(),
        )
    )


async def set_floor(tx: AsyncSession, endpoint_id: uuid.UUID, replicas: int, seconds: float) -> FloorRecord | None:
    """Puts a floor under the number of replicas for a time, in place of another; 0 replicas take it away."""
    if replicas == 0:
        await tx.execute(delete(_floor).where(_floor.c.endpoint_id == endpoint_id))
        return None
    made = insert(_floor).values(
        endpoint_id=endpoint_id, replicas=replicas, end_time=func.now() + dt.timedelta(seconds=seconds)
    )
    put = made.on_conflict_do_update(
        index_elements=["endpoint_id"], set_={"replicas": made.excluded.replicas, "end_time": made.excluded.end_time}
    )
    end_time = (await tx.execute(put.returning(_floor.c.end_time))).scalar_one()
    return FloorRecord(endpoint_id, replicas, end_time)


async def has_any(tx: AsyncSession, *, project: str = "", owner: str = "", resource_group: str = "") -> bool:
    """Returns whether a project, a user or a resource group, whichever is given, has endpoints that are not deleted."""
    column, name = (
        (_endpoint.c.project, project)
        if project
        else (_endpoint.c.owner, owner)
        if owner
        else (_endpoint.c.resource_group, resource_group)
    )
    query = select(_endpoint.c.id).where(_IS_THERE, column == name)
    return bool((await tx.execute(select(query.exists()))).scalar_one())


def _making_taken_hosts() -> Select[tuple[str]]:
    stored = _endpoint.c.settings["routing"]["hosts"]
    # Another version may have stored something else.
    listed = case((func.jsonb_typeof(stored) == "array", stored), else_=EMPTY_LIST)
    h = func.jsonb_array_elements_text(listed).table_valued(column("host", Text())).render_derived(name="h")
    return (
        select(h.c.host)
        .distinct()
        .join_from(_endpoint, h, true())
        .where(_IS_THERE, _endpoint.c.id != parameter("endpoint", Uuid()), h.c.host == one_of("hosts"))
    )


_TAKEN_HOSTS = _making_taken_hosts()


async def hosts_taken(tx: AsyncSession, hosts: Collection[str], endpoint_id: uuid.UUID) -> set[str]:
    """Returns those of these further host names that other endpoints have, which are not deleted. Until the commit,
    no other transaction asks.
    """
    await tx.execute(locking("hosts of endpoints"))
    found = await tx.execute(_TAKEN_HOSTS, {"endpoint": endpoint_id, "hosts": list(hosts)})
    return set(found.scalars())


async def names_taken(tx: AsyncSession, names: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns those of (project, name) that are names of endpoints."""
    pairs = tuple_(_endpoint.c.project, _endpoint.c.name)
    found = await tx.execute(select(_endpoint.c.project, _endpoint.c.name).where(_IS_THERE, pairs.in_(list(names))))
    return {(project, name) for project, name in found}


async def purge(tx: AsyncSession) -> None:
    """Removes endpoints that were deleted long ago, and replicas that are gone,
    but for the newest of each endpoint that failed.
    """
    past = _endpoint.c.delete_time < func.now() - dt.timedelta(hours=DELETED_HOURS)
    await tx.execute(delete(_endpoint).where(_endpoint.c.lifecycle == word("DELETED"), past))


async def read_decisions(tx: AsyncSession, endpoint_id: uuid.UUID, limit: int) -> list[tuple[Decision, dt.datetime]]:
    """Returns the decisions that changed the target of an endpoint, newest first, as far as the journal goes back."""
    query = (
        select(_journal.c.payload["decision"].label("decision"), _journal.c.create_time)
        .where(_journal.c.session_id == endpoint_id, _journal.c.kind == ENDPOINT_KINDS[TargetChanged])
        .order_by(_journal.c.revision.desc())
        .limit(limit)
    )
    found = await tx.execute(query)
    decisions = [(parse_decision(row["decision"]), row["create_time"]) for row in fetched(found)]
    return [(decision, time) for decision, time in decisions if decision is not None]
