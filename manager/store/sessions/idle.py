"""The use of sessions as it is kept, and who may use how little for how long: policies, overrides, interactions,
warnings.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pydantic import TypeAdapter
from sqlalchemy import Executable, Float, Uuid, and_, case, cast, extract, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, delete
from sqlmodel import select as select_rows

from retinue.manager.domain.idle.policy import NOTHING, IdlePolicy
from retinue.manager.domain.idle.utilization import Reading, WindowRecord
from retinue.manager.store.postgres.constructs import (
    EMPTY_OBJECT,
    columns_of,
    objects,
    one_of,
    seconds,
    span,
    table_of,
    value_of,
    word,
)
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import fetched, recordset
from retinue.manager.store.tables import (
    Agent,
    Attempt,
    IdleLook,
    IdleOverride,
    Kernel,
    ResourceGroup,
    Session,
    SessionIdle,
)

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Transaction

_POLICY = Decoder("an idle policy", TypeAdapter(IdlePolicy).validate_python)
WINDOW = Decoder("the use of a session over a window", TypeAdapter(WindowRecord).validate_python)
READING = Decoder("the reading of a session's use", TypeAdapter(Reading).validate_python)

_agent, _attempt, _group, _idle = table_of(Agent), table_of(Attempt), table_of(ResourceGroup), table_of(SessionIdle)
_kernel, _look, _overrides, _session = table_of(Kernel), table_of(IdleLook), table_of(IdleOverride), table_of(Session)
# Since when a session counts as unused; its idle row may be missing.
_BASELINE = func.greatest(_session.c.start_time, _idle.c.interaction_time)
_PAUSED = case((_idle.c.pause_time > _BASELINE, _idle.c.paused_seconds), else_=0)
_WITH_USE = _session.outerjoin(_idle, _idle.c.session_id == _session.c.id)
_IS_RUNNING = _session.c.state == word("RUNNING")


@dataclass(frozen=True, slots=True)
class RunningSession:
    """The recorded use of a running session. Times are in seconds since 1970, `paused` is in seconds; `reachable` when
    none of its agents is silent; `warned` has when checkers warned, `reading` the last reading of its utilisation.
    """

    id: uuid.UUID
    owner: str
    resource_group: str
    type: str
    start: float
    interaction: float | None
    extension_end_time: float | None
    paused: float
    reachable: bool
    warned: Mapping[str, float]
    reading: Reading | None


@dataclass(frozen=True, slots=True)
class OverrideRecord:
    """How policies differ for a user; `version` counts changes, and 0 is not stored."""

    user_name: str
    policy: IdlePolicy | Unreadable
    version: int


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """The use of a session over a window, and the reading of it."""

    session_id: uuid.UUID
    window: WindowRecord
    reading: Reading


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A running kernel whose use is measured; `slots` are its amounts in smallest units."""

    session_id: uuid.UUID
    kernel_id: uuid.UUID
    epoch: int
    agent_id: str
    slots: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UsedKernel:
    """A kernel that something was exchanged with, and the interaction timeouts, in seconds,
    of its group and of its owner's override.
    """

    kernel_id: uuid.UUID
    session_id: uuid.UUID
    of_group: float | None
    of_owner: float | None


async def note_look(tx: Transaction) -> tuple[float | None, float]:
    """Records that the sessions are evaluated now; returns when they were before (None: never) and now,
    in seconds since 1970.
    """
    before = select(_look.c.id, _look.c.time).where(_look.c.id == 1).with_for_update().cte("before")
    noted = update(_look).where(_look.c.id == before.c.id).values(time=func.now())
    row = await tx.execute(noted.returning(seconds(before.c.time), seconds(func.now())))
    former, now = row.one()
    return former, now


async def read_now(tx: Transaction) -> float:
    """Seconds since 1970, by the database's clock at this moment."""
    now: float = (await tx.execute(select(seconds(func.clock_timestamp())))).scalar_one()
    return now


def decode_policy(stored: object) -> IdlePolicy | Unreadable:
    """Returns a policy, or an override, out of its column. Never raises."""
    return _POLICY.decode(stored)


def encode_policy(policy: IdlePolicy) -> dict[str, object]:
    """Returns a policy for its column: what is set in it."""
    stored: dict[str, object] = {}
    for field in fields(policy):
        value = getattr(policy, field.name)
        if value != getattr(NOTHING, field.name):
            stored[field.name] = sorted(value) if isinstance(value, frozenset) else value
    return stored


async def read_policies(
    tx: Transaction,
) -> tuple[dict[str, IdlePolicy | Unreadable], dict[str, IdlePolicy | Unreadable]]:
    """Returns the policies of groups that have one, by name, and overrides by user."""
    groups = await tx.execute(select(_group.c.name, _group.c.idle_policy).where(_group.c.idle_policy != EMPTY_OBJECT))
    users = await tx.execute(select(_overrides.c.user_name, _overrides.c.policy))
    return {row[0]: decode_policy(row[1]) for row in groups}, {row[0]: decode_policy(row[1]) for row in users}


async def read_policy(
    tx: Transaction, group: str, owner: str
) -> tuple[IdlePolicy | Unreadable, IdlePolicy | Unreadable]:
    """Returns the policy of one group and the override of one user; empty where there is none."""
    of_group = select(_group.c.idle_policy).where(_group.c.name == group).scalar_subquery()
    of_owner = select(_overrides.c.policy).where(_overrides.c.user_name == owner).scalar_subquery()
    row = await tx.execute(select(func.coalesce(of_group, EMPTY_OBJECT), func.coalesce(of_owner, EMPTY_OBJECT)))
    policy, override = row.one()
    return decode_policy(policy), decode_policy(override)


_SILENT = select(_attempt.c.kernel_id).join_from(_attempt, _agent, _agent.c.id == _attempt.c.agent_id)
_SILENT_OF_SESSION = _SILENT.where(
    _attempt.c.session_id == _session.c.id, _attempt.c.end_time.is_(None), _agent.c.state != word("ALIVE")
)
_RUNNING = (
    select(
        _session.c.id,
        _session.c.owner,
        _session.c.resource_group,
        _session.c.type,
        seconds(_session.c.start_time).label("start"),
        seconds(_idle.c.interaction_time).label("interaction"),
        seconds(_idle.c.extension_end_time).label("extension_end_time"),
        _PAUSED.label("paused"),
        (~_SILENT_OF_SESSION.exists()).label("reachable"),
        func.coalesce(_idle.c.warned, EMPTY_OBJECT).label("warned"),
        func.coalesce(_idle.c.reading, EMPTY_OBJECT).label("reading"),
    )
    .select_from(_WITH_USE)
    .where(_IS_RUNNING, _session.c.type == one_of("types"))
)


async def read_running(
    tx: Transaction,
    types: Collection[str],
    *,
    groups: Collection[str] = (),
    owners: Collection[str] = (),
    after: uuid.UUID | None = None,
    limit: int = 0,
    session_ids: Collection[uuid.UUID] | None = None,
) -> list[RunningSession]:
    """Returns running sessions of these types: those in groups and of owners, `limit` of them in the order of their ids
    after one, or those named.
    """
    values: dict[str, object]
    if session_ids is not None:
        query, values = _RUNNING.where(_session.c.id == one_of("ids", Uuid())), {"ids": list(session_ids)}
    else:
        mine = or_(_session.c.resource_group == one_of("groups"), _session.c.owner == one_of("owners"))
        query = _RUNNING.where(mine, _session.c.id > (after or uuid.UUID(int=0))).order_by(_session.c.id).limit(limit)
        values = {"groups": list(groups), "owners": list(owners)}
    rows = await tx.execute(query, {"types": list(types), **values})
    return [RunningSession(**{**row, "reading": READING.decode_present(row["reading"])}) for row in fetched(rows)]


_MEASURED = (
    select(_attempt.c.session_id, _attempt.c.kernel_id, _attempt.c.epoch, _attempt.c.agent_id, _kernel.c.slots)
    .join_from(_attempt, _kernel, and_(_kernel.c.id == _attempt.c.kernel_id, _kernel.c.epoch == _attempt.c.epoch))
    .where(
        _attempt.c.session_id == one_of("ids", Uuid()),
        _attempt.c.end_time.is_(None),
        _kernel.c.state == word("RUNNING"),
    )
)


async def read_kernels(tx: Transaction, session_ids: Collection[uuid.UUID]) -> list[MeasuredKernel]:
    """Returns the running kernels of sessions."""
    rows = await tx.execute(_MEASURED, {"ids": list(session_ids)})
    return [MeasuredKernel(**row) for row in fetched(rows)]


async def read_windows(tx: Transaction, session_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, WindowRecord]:
    """Returns what sessions used, as it was last stored."""
    asked = _idle.c.session_id == one_of("ids", Uuid())
    query = select(_idle.c.session_id, _idle.c.window).where(asked, _idle.c.window != EMPTY_OBJECT)
    rows = await tx.execute(query, {"ids": list(session_ids)})
    return {row[0]: window for row in rows if (window := WINDOW.decode_present(row[1])) is not None}


def _making_kept() -> Executable:
    """What sessions used that are there."""
    rows = objects("given", "rows", **{item.name: item.type for item in columns_of(SessionIdle, MeasuredUse)})
    # Of those that are there, in one order for all.
    measured = select(*rows.c).join_from(rows, _session, _session.c.id == rows.c.session_id).order_by(rows.c.session_id)
    made = insert(_idle).from_select([*rows.c.keys()], measured, include_defaults=False)
    kept = {"window": made.excluded.window, "reading": made.excluded.reading}
    return made.on_conflict_do_update(index_elements=["session_id"], set_=kept)


_KEPT = _making_kept()


async def keep_windows(tx: Transaction, rows: Iterable[MeasuredUse]) -> None:
    """Keeps what sessions used. Sessions that are gone are left out."""
    await tx.execute(_KEPT, {"rows": recordset(rows)})


async def pause(tx: Transaction, seconds: float, session_ids: Collection[uuid.UUID] | None = None) -> None:
    """Records that no user could be heard for so many last seconds, in these running sessions or in all:
    they do not count as unused.
    """
    unused = func.greatest(0, extract("epoch", func.now() - _BASELINE))
    paused = func.least(cast(seconds, Float), unused) + _PAUSED
    of = select(_session.c.id, paused, func.now()).select_from(_WITH_USE).where(_IS_RUNNING).order_by(_session.c.id)
    if session_ids is not None:
        of = of.where(_session.c.id == one_of("ids", Uuid()))
    values = {} if session_ids is None else {"ids": list(session_ids)}
    made = insert(_idle).from_select(["session_id", "paused_seconds", "pause_time"], of, include_defaults=False)
    total = {"paused_seconds": made.excluded.paused_seconds, "pause_time": made.excluded.pause_time}
    await tx.execute(made.on_conflict_do_update(index_elements=["session_id"], set_=total), values)


def _making_noted() -> Executable:
    rows = objects("given", "rows", kernel_id=Uuid(), age=Float())
    newest = (
        select(_kernel.c.session_id, func.now() - span(func.min(rows.c.age)))
        .join_from(rows, _kernel, _kernel.c.id == rows.c.kernel_id)
        .group_by(_kernel.c.session_id)
        .order_by(_kernel.c.session_id)
    )
    made = insert(_idle).from_select(["session_id", "interaction_time"], newest, include_defaults=False)
    later = func.greatest(_idle.c.interaction_time, made.excluded.interaction_time)
    return made.on_conflict_do_update(index_elements=["session_id"], set_={"interaction_time": later})


_NOTED = _making_noted()
_TIMEOUT = literal("interaction")
_USED = (
    select(
        _kernel.c.id.label("kernel_id"),
        _kernel.c.session_id,
        cast(value_of(_group.c.idle_policy, _TIMEOUT), Float).label("of_group"),
        cast(value_of(_overrides.c.policy, _TIMEOUT), Float).label("of_owner"),
    )
    .join_from(_kernel, _session, _session.c.id == _kernel.c.session_id)
    .outerjoin(_group, _group.c.name == _session.c.resource_group)
    .outerjoin(_overrides, _overrides.c.user_name == _session.c.owner)
    .where(_kernel.c.id == one_of("ids", Uuid()))
)


async def note_interactions(tx: Transaction, ages: Mapping[uuid.UUID, float]) -> list[UsedKernel]:
    """Records that something was exchanged with kernels so many seconds ago.
    Returns those of the kernels that are there.
    """
    interactions = recordset({"kernel_id": kernel, "age": age} for kernel, age in ages.items())
    await tx.execute(_NOTED, {"rows": interactions})
    rows = await tx.execute(_USED, {"ids": list(ages)})
    return [UsedKernel(**row) for row in fetched(rows)]


async def extend(tx: Transaction, session_id: uuid.UUID, until: float | None) -> None:
    """The owner has asked for a session to be kept, until then (seconds since 1970): that is an interaction,
    and no warning holds.
    """
    end_time = func.to_timestamp(cast(until, Float))
    made = insert(_idle).values(session_id=session_id, interaction_time=func.now(), extension_end_time=end_time)
    kept = {"interaction_time": func.now(), "extension_end_time": made.excluded.extension_end_time}
    await tx.execute(made.on_conflict_do_update(index_elements=["session_id"], set_={**kept, "warned": EMPTY_OBJECT}))


async def set_warned(tx: Transaction, warned: Mapping[uuid.UUID, Mapping[str, float]]) -> None:
    """Stores when checkers warned of the end of sessions, by checker."""
    rows = objects("given", "rows", session_id=_idle.c.session_id.type, warned=_idle.c.warned.type)
    made = insert(_idle).from_select(
        ["session_id", "warned"], select(*rows.c).order_by(rows.c.session_id), include_defaults=False
    )
    put = made.on_conflict_do_update(index_elements=["session_id"], set_={"warned": made.excluded.warned})
    await tx.execute(put, {"rows": recordset({"session_id": key, "warned": value} for key, value in warned.items())})


async def get_override(tx: Transaction, user: str, *, lock: bool = False) -> OverrideRecord | None:
    """Returns how policies differ for a user; with `lock`, locked until the commit."""
    found = await tx.get(IdleOverride, user, with_for_update=lock or None)
    return None if found is None else _override(found)


async def put_override(tx: Transaction, user: str, policy: IdlePolicy) -> OverrideRecord:
    """Sets how policies differ for a user."""
    made = insert(IdleOverride).values(user_name=user, policy=encode_policy(policy), version=1)
    changed = {"policy": made.excluded.policy, "version": IdleOverride.version + 1}
    await tx.exec(made.on_conflict_do_update(index_elements=["user_name"], set_=changed))
    return _override(await tx.get_one(IdleOverride, user, populate_existing=True))


async def remove_override(tx: Transaction, user: str) -> None:
    """Policies do not differ for a user any more."""
    await tx.exec(delete(IdleOverride).where(col(IdleOverride.user_name) == user))


async def list_overrides(tx: Transaction, *, only: str | None, after: str, limit: int) -> list[OverrideRecord]:
    """Overrides by user; with `only`, that of one."""
    query = select_rows(IdleOverride).where(col(IdleOverride.user_name) > after)
    if only is not None:
        query = query.where(col(IdleOverride.user_name) == only)
    found = await tx.exec(query.order_by(col(IdleOverride.user_name)).limit(limit))
    return [_override(override) for override in found]


def _override(stored: IdleOverride) -> OverrideRecord:
    return OverrideRecord(stored.user_name, decode_policy(stored.policy), stored.version)
