"""Inserts, reads and removes sessions and kernels."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Integer, Text, Uuid, and_, delete, func, or_, select

from retinue.manager.domain.session.spec_codec import encode
from retinue.manager.domain.session.spec_columns import KernelColumns, SpecColumns, members
from retinue.manager.store.postgres.constructs import (
    Construct,
    columns_of,
    definitions,
    lists,
    one_of,
    parameter,
    table_of,
    word,
    words,
)
from retinue.manager.store.postgres.database import Query, Transaction, fetch
from retinue.manager.store.postgres.recordset import recordset
from retinue.manager.store.sessions import session_records
from retinue.manager.store.sessions.session_records import KernelRecord, SessionRecord
from retinue.manager.store.sessions.visibility import Visibility
from retinue.manager.store.tables import Attempt, Kernel, Session

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.new_session import NewKernel, NewSession
    from retinue.manager.domain.session.spec import SessionSpec

_attempt, _kernel, _session = table_of(Attempt), table_of(Kernel), table_of(Session)
# As indexes have it.
_IS_LIVE = _session.c.state.not_in(words("TERMINATED", "CANCELLED"))
_IS_ASKED = _session.c.id == one_of("ids", Uuid())
# To a caller who does not see everything.
_IS_VISIBLE = Visibility(everything=False, owner="").condition(_session)


async def take_numbers(tx: Transaction, amount: int) -> int:
    """Returns the first of so many consecutive numbers for new sessions, which no other transaction gets,
    whatever becomes of this one. No one waits for them until the commit.
    """
    query = taking_numbers(amount)
    return (await tx.pipeline(query)).of(query)


_TAKING_NUMBERS = Construct(select(func.take_session_numbers(parameter("amount", Integer())).label("first")))


def taking_numbers(amount: int) -> Query[int]:
    """Returns `take_numbers` as a query among others."""
    return Query(_TAKING_NUMBERS, {"amount": amount}, read=lambda rows: int(rows[0]["first"]))


@dataclass(frozen=True, slots=True)
class Inserted:
    """A session that was inserted: its number, and when."""

    number: int
    create_time: dt.datetime


class Insertion(NamedTuple):
    """A session to be inserted, with its spec and its kernels."""

    session: NewSession
    spec: SessionSpec
    kernels: Sequence[NewKernel]


# Every column that is written from a spec.
_COLUMNS_OF_SPEC = [_session.c.spec, *columns_of(Session, SpecColumns)]
_OF_SPEC = [item.name for item in _COLUMNS_OF_SPEC]
_OF_SPEC_DEFINED = definitions(_COLUMNS_OF_SPEC)


def insert_statement(
    insertions: Sequence[Insertion], *, first: int, reason: str, message: str
) -> Query[dict[uuid.UUID, Inserted]]:
    """Inserts sessions with their kernels, in order of arrival and with numbers from `first`, waiting for `reason`.
    One whose name a live session of the owner has, or an earlier one of these, is left out with its kernels.
    """
    of_spec = ", ".join(f"p.{name}" for name in _OF_SPEC if name != "spec")
    return Query(
        f"""
            WITH made AS (
                INSERT INTO session (number,
                    id, name, owner, project, resource_group, type, cluster_mode, cluster_size, priority, endpoint,
                    spec, {of_spec.replace("p.", "")},
                    explanation, conditions, failed_agents, last_failure, state, result, reason, message, network, tries, failed_starts, force,
                    version)
                OVERRIDING SYSTEM VALUE
                SELECT :first + r.n - 1,
                    r.id, r.name, r.owner, r.project, r.resource_group, r.type, r.cluster_mode, r.cluster_size, r.priority, r.endpoint,
                    p.spec || jsonb_build_object('name', r.name), {of_spec},
                    '{{}}', '[]', '[]', '', 'PENDING', 'UNDEFINED', CAST(:reason AS text), CAST(:message AS text), '', 0, 0, FALSE, 1
                FROM ROWS FROM (jsonb_to_recordset(CAST(:sessions AS jsonb)) AS (id uuid, name text, owner text, project text,
                    resource_group text, type text, cluster_mode text, cluster_size int, priority int, endpoint text, of_spec int))
                    WITH ORDINALITY AS r(id, name, owner, project, resource_group, type, cluster_mode, cluster_size, priority, endpoint,
                        of_spec, n)
                JOIN jsonb_to_recordset(CAST(:specs AS jsonb)) AS p(position int, {_OF_SPEC_DEFINED}) ON p.position = r.of_spec
                ORDER BY r.n
                ON CONFLICT DO NOTHING RETURNING id, number, create_time
            ), of_kernels AS (
                INSERT INTO kernel (id, session_id, role, role_index, local_rank, hostname, slots, image, isolation, state, epoch, address,
                    reason)
                SELECT r.id, r.session_id, r.role, r.role_index, r.local_rank, r.hostname, r.slots, r.image, r.isolation, 'PENDING', 0, '', ''
                FROM jsonb_to_recordset(CAST(:kernels AS jsonb)) AS r(id uuid, session_id uuid, role text, role_index int, local_rank int,
                    hostname text, slots jsonb, image text, isolation text)
                JOIN made ON made.id = r.session_id
            )
            SELECT id, number, create_time FROM made
        """,  # noqa: S608  # names of our columns
        {**_rows(insertions), "first": first, "reason": reason, "message": message},
        read=lambda rows: {row["id"]: Inserted(row["number"], row["create_time"]) for row in rows},
    )


def _rows(insertions: Sequence[Insertion]) -> dict[str, str]:
    """Returns the specs, sessions and kernels to be inserted as sets of rows; a spec that sessions share is in one."""
    # By identity.
    position_of: dict[int, int] = {}
    of_roles: dict[tuple[int, str], dict[str, object]] = {}
    specs: list[dict[str, object]] = []
    rows, kernels = [], []
    for session, spec, of_session in insertions:
        if (position := position_of.get(id(spec))) is None:
            position = position_of[id(spec)] = len(specs)
            specs.append({**members(SpecColumns.of(spec)), "spec": encode(spec), "position": position})
        rows.append({**members(session), "of_spec": position})
        for kernel in of_session:
            if (of_role := of_roles.get((position, kernel.role))) is None:
                of_role = of_roles[position, kernel.role] = members(KernelColumns.of(spec, kernel.role))
            kernels.append({**members(kernel), **of_role})
    return {"specs": recordset(specs), "sessions": recordset(rows), "kernels": recordset(kernels)}


async def remove(tx: AsyncSession, session_ids: Collection[uuid.UUID]) -> None:
    """Deletes sessions and all that belongs to them: only for those inserted in the same transaction."""
    await tx.execute(delete(_session).where(_IS_ASKED), {"ids": list(session_ids)})


_asked = lists("asked", project=Text(), name=Text())
_TAKEN = (
    select(_session.c.project, _session.c.name)
    .join_from(_session, _asked, and_(_session.c.project == _asked.c.project, _session.c.name == _asked.c.name))
    .where(_session.c.owner == parameter("owner", Text()), _IS_LIVE)
)


async def names_taken(tx: AsyncSession, owner: str, names: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns those (project, name) that live sessions of an owner have."""
    given = {"project": [project for project, _ in names], "name": [name for _, name in names]}
    rows = await tx.execute(_TAKEN, {"owner": owner, **given})
    return {(project, name) for project, name in rows}


async def pending_among(tx: AsyncSession, session_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Returns those of the sessions that wait."""
    query = select(_session.c.id).where(_IS_ASKED, _session.c.state == word("PENDING"))
    rows = await tx.execute(query, {"ids": list(session_ids)})
    return set(rows.scalars())


async def read(
    tx: AsyncSession, session_ids: Collection[uuid.UUID], *, lock: bool = False
) -> dict[uuid.UUID, SessionRecord]:
    """Returns sessions by id; with `lock`, locked in the order of their ids until the commit."""
    return await fetch(tx, reading(session_ids, lock=lock))


async def read_kernels(tx: AsyncSession, session_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[KernelRecord]]:
    """Returns kernels by session, in the order of their rank."""
    return await fetch(tx, reading_kernels(session_ids))


async def lock(
    tx: Transaction, session_ids: Collection[uuid.UUID]
) -> tuple[dict[uuid.UUID, SessionRecord], dict[uuid.UUID, list[KernelRecord]]]:
    """Locks sessions until the commit; returns them by id, and their kernels: `read` and `read_kernels` at once."""
    records, kernels = reading(session_ids, lock=True), reading_kernels(session_ids)
    answers = await tx.pipeline(records, kernels)
    return answers.of(records), answers.of(kernels)


_BY_ID = select(*columns_of(Session, SessionRecord)).where(_IS_ASKED).order_by(_session.c.id)
_VISIBLE = _BY_ID.where(_IS_VISIBLE)
_READ, _LOCKED = Construct(_BY_ID), Construct(_BY_ID.with_for_update())
_READ_VISIBLE, _LOCKED_VISIBLE = Construct(_VISIBLE), Construct(_VISIBLE.with_for_update())
_KERNELS = Construct(
    select(
        *(_kernel.c[name] for name in session_records.KERNEL_COLUMNS),
        _attempt.c.goal,
        _attempt.c.observed,
        or_(_attempt.c.kernel_id.is_(None), _attempt.c.end_time.is_not(None)).label("attempt_ended"),
        func.coalesce(_attempt.c.observed_end_time, _attempt.c.end_time).label("attempt_end_time"),
        _attempt.c.usage.label("attempt_usage"),
    )
    .outerjoin_from(_kernel, _attempt, and_(_attempt.c.kernel_id == _kernel.c.id, _attempt.c.epoch == _kernel.c.epoch))
    .where(_kernel.c.session_id == one_of("ids", Uuid()))
    .order_by(_kernel.c.session_id, _kernel.c.local_rank)
)


def reading(
    session_ids: Collection[uuid.UUID], *, lock: bool = False, visibility: Visibility | None = None
) -> Query[dict[uuid.UUID, SessionRecord]]:
    """Returns `read` as a query among others; with `visibility`, without the sessions that the caller may not read."""
    is_all = visibility is None or visibility.everything
    return Query(
        (_LOCKED if lock else _READ) if is_all else (_LOCKED_VISIBLE if lock else _READ_VISIBLE),
        {"ids": list(session_ids), **({} if visibility is None else visibility.parameters())},
        read=lambda rows: {row["id"]: session_records.session(row) for row in rows},
    )


def reading_kernels(session_ids: Collection[uuid.UUID]) -> Query[dict[uuid.UUID, list[KernelRecord]]]:
    """Returns `read_kernels` as a query among others."""
    return Query(_KERNELS, {"ids": list(session_ids)}, read=session_records.kernels_by_session)


async def queue_length(tx: AsyncSession, group: str) -> int:
    """Returns the number of sessions that wait in a group."""
    query = select(func.count()).where(_session.c.state == word("PENDING"), _session.c.resource_group == group)
    number = await tx.execute(query)
    return int(number.scalar_one())
