"""The use of sessions as it is kept, and who may use how little for how long: policies, overrides, interactions,
warnings.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields

from pydantic import TypeAdapter
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, delete, select

from retinue.manager.domain.idle.policy import NOTHING, IdlePolicy
from retinue.manager.domain.idle.utilization import Reading, WindowRecord
from retinue.manager.store.postgres.database import Transaction
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import fetched, recordset
from retinue.manager.store.tables import IdleOverride

_POLICY = Decoder("an idle policy", TypeAdapter(IdlePolicy).validate_python)
WINDOW = Decoder("the use of a session over a window", TypeAdapter(WindowRecord).validate_python)
READING = Decoder("the reading of a session's use", TypeAdapter(Reading).validate_python)
# Since when a session counts as unused; `i` may be missing.
_BASELINE = "greatest(s.start_time, i.interaction_time)"


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
    row = await tx.execute(
        text("""
            WITH before AS (SELECT id, time FROM idle_look WHERE id = 1 FOR UPDATE)
            UPDATE idle_look SET time = now() FROM before WHERE idle_look.id = before.id
            RETURNING extract(epoch FROM before.time)::float8, extract(epoch FROM now())::float8
        """)
    )
    before, now = row.one()
    return before, now


async def read_now(tx: Transaction) -> float:
    """Seconds since 1970, by the database's clock at this moment."""
    now: float = (await tx.execute(text("SELECT extract(epoch FROM clock_timestamp())::float8"))).scalar_one()
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
    groups = await tx.execute(text("SELECT name, idle_policy FROM resource_group WHERE idle_policy <> '{}'"))
    users = await tx.execute(text("SELECT user_name, policy FROM idle_override"))
    return {row[0]: decode_policy(row[1]) for row in groups}, {row[0]: decode_policy(row[1]) for row in users}


async def read_policy(
    tx: Transaction, group: str, owner: str
) -> tuple[IdlePolicy | Unreadable, IdlePolicy | Unreadable]:
    """Returns the policy of one group and the override of one user; empty where there is none."""
    row = await tx.execute(
        text("""
            SELECT coalesce((SELECT idle_policy FROM resource_group WHERE name = :group), '{}'),
                coalesce((SELECT policy FROM idle_override WHERE user_name = :owner), '{}')
        """),
        {"group": group, "owner": owner},
    )
    policy, override = row.one()
    return decode_policy(policy), decode_policy(override)


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
    which = "(s.resource_group = ANY(:groups) OR s.owner = ANY(:owners))" if session_ids is None else "s.id = ANY(:ids)"
    rows = await tx.execute(
        text(f"""
            SELECT s.id, s.owner, s.resource_group, s.type, extract(epoch FROM s.start_time)::float8 AS start,
                extract(epoch FROM i.interaction_time)::float8 AS interaction,
                extract(epoch FROM i.extension_end_time)::float8 AS extension_end_time,
                CASE WHEN i.pause_time > {_BASELINE} THEN i.paused_seconds ELSE 0 END AS paused,
                NOT EXISTS (
                    SELECT FROM attempt a JOIN agent g ON g.id = a.agent_id
                    WHERE a.session_id = s.id AND a.end_time IS NULL AND g.state <> 'ALIVE'
                ) AS reachable,
                coalesce(i.warned, '{{}}') AS warned, coalesce(i.reading, '{{}}') AS reading
            FROM session s LEFT JOIN session_idle i ON i.session_id = s.id
            WHERE s.state = 'RUNNING' AND s.type = ANY(:types) AND {which}
        """),  # noqa: S608  # the conditions are ours
        {
            "types": list(types),
            **(
                {"groups": list(groups), "owners": list(owners), "after": after or uuid.UUID(int=0), "limit": limit}
                if session_ids is None
                else {"ids": list(session_ids)}
            ),
        },
    )
    return [RunningSession(**{**row, "reading": READING.decode_present(row["reading"])}) for row in fetched(rows)]


async def read_kernels(tx: Transaction, session_ids: Collection[uuid.UUID]) -> list[MeasuredKernel]:
    """Returns the running kernels of sessions."""
    rows = await tx.execute(
        text("""
            SELECT a.session_id, a.kernel_id, a.epoch, a.agent_id, k.slots
            FROM attempt a JOIN kernel k ON k.id = a.kernel_id AND k.epoch = a.epoch
            WHERE a.session_id = ANY(:ids) AND a.end_time IS NULL AND k.state = 'RUNNING'
        """),
        {"ids": list(session_ids)},
    )
    return [MeasuredKernel(**row) for row in fetched(rows)]


async def read_windows(tx: Transaction, session_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, WindowRecord]:
    """Returns what sessions used, as it was last stored."""
    rows = await tx.execute(
        text('SELECT session_id, "window" FROM session_idle WHERE session_id = ANY(:ids) AND "window" <> \'{}\''),
        {"ids": list(session_ids)},
    )
    return {row[0]: window for row in rows if (window := WINDOW.decode_present(row[1])) is not None}


async def keep_windows(tx: Transaction, rows: Iterable[MeasuredUse]) -> None:
    """Keeps what sessions used. Sessions that are gone are left out."""
    await tx.execute(
        text("""
            INSERT INTO session_idle (session_id, "window", reading)
            SELECT r.session_id, r."window", r.reading
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(session_id uuid, "window" jsonb, reading jsonb)
            JOIN session s ON s.id = r.session_id ORDER BY 1
            ON CONFLICT (session_id) DO UPDATE SET "window" = excluded."window", reading = excluded.reading
        """),
        {"rows": recordset(rows)},
    )


async def pause(tx: Transaction, seconds: float, session_ids: Collection[uuid.UUID] | None = None) -> None:
    """Records that no user could be heard for so many last seconds, in these running sessions or in all:
    they do not count as unused.
    """
    which = "" if session_ids is None else "AND s.id = ANY(:ids)"
    await tx.execute(
        text(f"""
            INSERT INTO session_idle (session_id, paused_seconds, pause_time)
            SELECT s.id, least(CAST(:seconds AS float8), greatest(0, extract(epoch FROM now() - {_BASELINE})))
                + CASE WHEN i.pause_time > {_BASELINE} THEN i.paused_seconds ELSE 0 END, now()
            FROM session s LEFT JOIN session_idle i ON i.session_id = s.id
            WHERE s.state = 'RUNNING' {which} ORDER BY s.id
            ON CONFLICT (session_id) DO UPDATE SET paused_seconds = excluded.paused_seconds, pause_time = excluded.pause_time
        """),  # noqa: S608  # the conditions are ours
        {"seconds": seconds, **({} if session_ids is None else {"ids": list(session_ids)})},
    )


async def note_interactions(tx: Transaction, ages: Mapping[uuid.UUID, float]) -> list[UsedKernel]:
    """Records that something was exchanged with kernels so many seconds ago.
    Returns those of the kernels that are there.
    """
    interactions = recordset({"kernel_id": kernel, "age": age} for kernel, age in ages.items())
    await tx.execute(
        text("""
            INSERT INTO session_idle (session_id, interaction_time)
            SELECT k.session_id, now() - make_interval(secs => min(r.age))
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(kernel_id uuid, age float8) JOIN kernel k ON k.id = r.kernel_id
            GROUP BY k.session_id ORDER BY k.session_id
            ON CONFLICT (session_id) DO UPDATE
                SET interaction_time = greatest(session_idle.interaction_time, excluded.interaction_time)
        """),
        {"rows": interactions},
    )
    rows = await tx.execute(
        text("""
            SELECT k.id AS kernel_id, k.session_id, (g.idle_policy->>'interaction')::float8 AS of_group,
                (o.policy->>'interaction')::float8 AS of_owner
            FROM kernel k JOIN session s ON s.id = k.session_id
            LEFT JOIN resource_group g ON g.name = s.resource_group LEFT JOIN idle_override o ON o.user_name = s.owner
            WHERE k.id = ANY(:ids)
        """),
        {"ids": list(ages)},
    )
    return [UsedKernel(**row) for row in fetched(rows)]


async def extend(tx: Transaction, session_id: uuid.UUID, until: float | None) -> None:
    """The owner has asked for a session to be kept, until then (seconds since 1970): that is an interaction,
    and no warning holds.
    """
    await tx.execute(
        text("""
            INSERT INTO session_idle (session_id, interaction_time, extension_end_time)
            VALUES (:id, now(), to_timestamp(CAST(:until AS float8)))
            ON CONFLICT (session_id) DO UPDATE SET interaction_time = now(), extension_end_time = excluded.extension_end_time, warned = '{}'
        """),
        {"id": session_id, "until": until},
    )


async def set_warned(tx: Transaction, warned: Mapping[uuid.UUID, Mapping[str, float]]) -> None:
    """Stores when checkers warned of the end of sessions, by checker."""
    await tx.execute(
        text("""
            INSERT INTO session_idle (session_id, warned)
            SELECT r.session_id, r.warned FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(session_id uuid, warned jsonb) ORDER BY 1
            ON CONFLICT (session_id) DO UPDATE SET warned = excluded.warned
        """),
        {"rows": recordset({"session_id": key, "warned": value} for key, value in warned.items())},
    )


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
    query = select(IdleOverride).where(col(IdleOverride.user_name) > after)
    if only is not None:
        query = query.where(col(IdleOverride.user_name) == only)
    found = await tx.exec(query.order_by(col(IdleOverride.user_name)).limit(limit))
    return [_override(override) for override in found]


def _override(stored: IdleOverride) -> OverrideRecord:
    return OverrideRecord(stored.user_name, decode_policy(stored.policy), stored.version)
