"""Inserts, reads and changes endpoints: what is asked for of each, its target, its conditions and its floor."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Update, delete, func, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.endpoints.bounds import checked
from retinue.manager.domain.endpoints.events import ENDPOINT_KINDS, TargetChanged, parse_decision
from retinue.manager.domain.endpoints.scaling import Decision
from retinue.manager.domain.endpoints.spec import MAX_REPLICAS, EndpointSettings, RevisionSpec
from retinue.manager.domain.endpoints.states import Lifecycle
from retinue.manager.domain.session.events import Condition, parse_conditions
from retinue.manager.store.endpoints import endpoint_revisions, endpoint_rollouts
from retinue.manager.store.endpoints.endpoint_revisions import RevisionRecord, encode_revision
from retinue.manager.store.endpoints.endpoint_rollouts import RolloutRecord
from retinue.manager.store.postgres.constructs import columns_of, locking, table_of, word
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import Row, fetched, recordset
from retinue.manager.store.sessions.sessions import Visibility
from retinue.manager.store.tables import Endpoint, Journal, ScalingFloor

_COLUMNS = """
    e.id, e.name, e.project, e.owner, e.resource_group, e.host_label, e.lifecycle, e.settings, e.version, e.newest_revision, e.target,
    e.target_reason, e.decision, e.conditions, e.first_ready_time, e.short_time, e.create_time, e.delete_time
"""
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


_endpoint, _floor, _journal = table_of(Endpoint), table_of(ScalingFloor), table_of(Journal)
_IS_THERE = _endpoint.c.lifecycle != word("DELETED")


async def read_clock(tx: AsyncSession) -> dt.datetime:
    """Returns the time by the database, which all times of replicas and rollouts go by."""
    found: dt.datetime = (await tx.execute(select(func.now()))).scalar_one()
    return found


async def create(tx: AsyncSession, new: NewEndpoint) -> bool:
    """Inserts an endpoint with its first revision, which gets all requests; returns whether its name was free."""
    made = await tx.execute(
        text("""
            WITH r AS (SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id uuid, name text, project text, owner text,
                resource_group text, host_label text, settings jsonb, target int, spec jsonb)
            ), made AS (
                INSERT INTO endpoint (id, name, project, owner, resource_group, host_label, lifecycle, settings, version, newest_revision,
                    target, target_reason)
                SELECT id, name, project, owner, resource_group, host_label, 'ACTIVE', settings, 1, 1, target, '' FROM r
                ON CONFLICT DO NOTHING RETURNING id
            ), revised AS (
                INSERT INTO endpoint_revision (endpoint_id, number, spec, failures, author)
                SELECT made.id, 1, r.spec, 0, r.owner FROM r JOIN made ON made.id = r.id
            ), shared AS (
                INSERT INTO endpoint_traffic (endpoint_id, revision, percent) SELECT id, 1, 100 FROM made
            )
            SELECT id FROM made
        """),
        {"rows": recordset([{**_columns(new), "spec": encode_revision(new.spec)}])},
    )
    return made.scalar_one_or_none() is not None


def _columns(new: NewEndpoint) -> dict[str, object]:
    return {field.name: getattr(new, field.name) for field in fields(new)}


async def find(tx: AsyncSession, reference: str, visibility: Visibility) -> list[uuid.UUID]:
    """Returns the endpoints that an id, a name, or `PROJECT/NAME` refers to; at most two."""
    if "\0" in reference:
        return []
    project, _, name = reference.rpartition("/")
    found = await tx.execute(
        text(f"""
            SELECT e.id FROM endpoint e WHERE {visibility.condition("e")} AND (
                CAST(e.id AS text) = :reference OR (e.lifecycle <> 'DELETED' AND e.name = :name AND (:project = '' OR e.project = :project)))
            ORDER BY CAST(e.id AS text) = :reference DESC LIMIT 2
        """),  # noqa: S608  # the condition is ours, its values are parameters
        {"reference": reference.lower(), "name": name, "project": project, **visibility.parameters()},
    )
    return list(found.scalars())


async def lock(tx: AsyncSession, endpoint_id: uuid.UUID) -> EndpointRecord | None:
    """Locks an endpoint until the commit, and returns it."""
    await tx.execute(select(_endpoint.c.id).where(_endpoint.c.id == endpoint_id).with_for_update())
    return (await read(tx, [endpoint_id])).get(endpoint_id)


async def read(tx: AsyncSession, endpoint_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, EndpointRecord]:
    """Returns endpoints by their ids."""
    return await _read(tx, "e.id = ANY(:ids)", {"ids": list(endpoint_ids)})


async def read_marks(tx: AsyncSession) -> dict[uuid.UUID, int]:
    """Returns all endpoints that are not deleted, and those that were less than a day ago, each with a number that
    differs when the endpoint, its floor, a replica that is not gone, its session or the state of its agent has changed.
    """
    rows = await tx.execute(
        text("""
            SELECT e.id, hashtextextended(concat_ws(' ', CAST(e.xmin AS text), CAST(f.xmin AS text), f.end_time > now(), (
                SELECT string_agg(concat_ws(' ', CAST(r.xmin AS text), CAST(s.xmin AS text), a.state, a.drained), ',' ORDER BY r.serial)
                FROM endpoint_replica r JOIN session s ON s.id = r.session_id JOIN kernel k ON k.id = r.session_id
                LEFT JOIN agent a ON a.id = k.agent_id
                WHERE r.endpoint_id = e.id AND r.state <> 'GONE')), 0)
            FROM endpoint e LEFT JOIN scaling_floor f ON f.endpoint_id = e.id
            WHERE e.lifecycle <> 'DELETED' OR e.delete_time > now() - make_interval(hours => :hours)
        """),
        {"hours": DELETED_HOURS},
    )
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
    found = await tx.execute(
        text(f"""
            SELECT e.id FROM endpoint e WHERE {visibility.condition("e")} AND (:project = '' OR e.project = :project)
                AND (e.lifecycle <> 'DELETED' OR (:deleted AND e.delete_time > now() - make_interval(hours => :hours)))
                AND (CAST(:time AS timestamptz) IS NULL OR (e.create_time, e.id) < (CAST(:time AS timestamptz), CAST(:id AS uuid)))
            ORDER BY e.create_time DESC, e.id DESC LIMIT :limit
        """),  # noqa: S608  # the condition is ours, its values are parameters
        {
            "project": project,
            "deleted": deleted,
            "hours": DELETED_HOURS,
            "time": after and after[0],
            "id": after and after[1],
            "limit": limit,
            **visibility.parameters(),
        },
    )
    ids = list(found.scalars())
    records = await read(tx, ids)
    return [records[item] for item in ids if item in records]


async def _read(tx: AsyncSession, condition: str, values: Mapping[str, Any]) -> dict[uuid.UUID, EndpointRecord]:
    rows = fetched(await tx.execute(text(f"SELECT {_COLUMNS} FROM endpoint e WHERE {condition}"), values))  # noqa: S608
    if not rows:
        return {}
    ids = [row["id"] for row in rows]
    revisions = await endpoint_revisions.read_current(tx, ids)
    rollouts = await endpoint_rollouts.read(tx, ids)
    floors = {
        row["endpoint_id"]: FloorRecord(**row)
        for row in fetched(
            await tx.execute(
                select(*columns_of(ScalingFloor, FloorRecord)).where(
                    _floor.c.endpoint_id.in_(ids), _floor.c.end_time > func.now()
                )
            )
        )
    }
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
    await tx.execute(
        text("""
            UPDATE endpoint SET settings = r.settings, version = version + 1
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(settings jsonb) WHERE id = :id
        """),
        {"id": endpoint_id, "rows": recordset([{"settings": settings}])},
    )


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
    await tx.execute(
        text("""
            UPDATE endpoint SET target = :target, target_reason = :reason, decision = r.decision
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(decision jsonb) WHERE id = :id
        """),
        {"id": endpoint_id, "target": target, "reason": reason, "rows": recordset([{"decision": decision}])},
    )


async def set_condition(
    tx: AsyncSession, endpoint_id: uuid.UUID, *, conditions: Sequence[Condition], ready: bool, short: bool
) -> None:
    """Sets what is noteworthy of an endpoint, and since when fewer replicas are ready than wanted."""
    await tx.execute(
        text("""
            UPDATE endpoint SET conditions = r.conditions,
                first_ready_time = CASE WHEN :ready THEN coalesce(first_ready_time, now()) ELSE first_ready_time END,
                short_time = CASE WHEN :short THEN coalesce(short_time, now()) END
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(conditions jsonb) WHERE id = :id
        """),
        {"id": endpoint_id, "ready": ready, "short": short, "rows": recordset([{"conditions": conditions}])},
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


async def hosts_taken(tx: AsyncSession, hosts: Collection[str], endpoint_id: uuid.UUID) -> set[str]:
    """Returns those of these further host names that other endpoints have, which are not deleted. Until the commit,
    no other transaction asks.
    """
    await tx.execute(locking("hosts of endpoints"))
    found = await tx.execute(
        text("""
            SELECT DISTINCT h.host FROM endpoint e,
                jsonb_array_elements_text(CASE jsonb_typeof(e.settings->'routing'->'hosts')
                    WHEN 'array' THEN e.settings->'routing'->'hosts' ELSE '[]' END) AS h(host)
            WHERE e.lifecycle <> 'DELETED' AND e.id <> :id AND h.host = ANY(:hosts)
        """),
        {"id": endpoint_id, "hosts": list(hosts)},
    )
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
