"""Records of acts and of denied calls.

An act has a record before it begins, and its outcome is written before it is answered: whenever a manager is killed,
there is a record of each act that took effect. Denied calls are counted in one row for a minute of those alike.
"""

from __future__ import annotations

import datetime as dt
import os
import uuid
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, and_, func, or_, tuple_
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlmodel import col, delete, select, update

from retinue.manager.store.endpoints import endpoints
from retinue.manager.store.postgres.recordset import record_of
from retinue.manager.store.sessions import lookup
from retinue.manager.store.tables import AuditRecord, Endpoint, Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.store.postgres.database import Transaction
    from retinue.manager.store.sessions.visibility import Visibility

HOST = "HOST"
"""The kind of principal of a command on the manager's machine."""
MAX_RECORDS = 250_000
"""Records of each category; of more, the oldest are removed."""
# One commit does not hold up others.
_PORTION = 5_000
# Of one statement, as rows are handled on the event loop.
_REFERENCES = 100
_DENIALS = uuid.UUID("8d3f2d5e-6a40-4b8e-9a55-0c2f3f1f7a11")


class Category(StrEnum):
    """What a record is about. Each is bounded by itself: users cannot push out records of administrators, nor can
    strangers those of users.
    """

    ADMINISTRATION = "ADMINISTRATION"
    ACCOUNT = "ACCOUNT"
    DENIAL = "DENIAL"


@dataclass(frozen=True, slots=True)
class Act:
    """An act that begins. `role` is that of a user in the whole system; `principal_kind` is empty without valid
    credentials.
    """

    category: Category
    principal_kind: str
    principal: str
    role: str
    token_id: uuid.UUID | None
    address: str
    method: str
    object_kind: str
    object: str
    summary: str
    request_id: str
    manager: str


@dataclass(frozen=True, slots=True)
class Denial:
    """Denied calls of a minute that are alike: all of them count in one record."""

    minute: dt.datetime
    principal_kind: str
    principal: str
    role: str
    address: str
    method: str
    code: str
    reason: str

    def without_caller(self) -> Denial:
        """Returns those of all callers together."""
        return replace(self, principal_kind="", principal="", role="", address="")


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it is kept; see the table."""

    id: uuid.UUID
    category: str
    create_time: dt.datetime
    end_time: dt.datetime | None
    principal_kind: str
    principal: str
    role: str
    token_id: uuid.UUID | None
    address: str
    method: str
    object_kind: str
    object: str
    summary: str
    code: str
    reason: str
    request_id: str
    manager: str
    count: int


async def begin(tx: AsyncSession, act: Act) -> uuid.UUID:
    """Records that an act begins; returns the id of its record."""
    record_id = uuid.uuid4()
    await tx.execute(insert(AuditRecord).values(id=record_id, **asdict(act)))
    return record_id


async def end(tx: AsyncSession, record_id: uuid.UUID, code: str, reason: str) -> None:
    """Records how an act has ended: the name of a gRPC status, and the reason of an error."""
    await tx.execute(
        update(AuditRecord)
        .where(col(AuditRecord.id) == record_id)
        .values(end_time=func.clock_timestamp(), code=code, reason=reason)
    )


def recording_command(command: str, object_kind: str, name: str, summary: str = "") -> Insert:
    """Returns the statement that records a command on the manager's machine, for the transaction of what it does."""
    uid = os.getuid()
    return insert(AuditRecord).values(
        id=uuid.uuid4(),
        category=Category.ADMINISTRATION,
        end_time=func.now(),
        principal_kind=HOST,
        principal="root" if uid == 0 else f"uid {uid}",
        method=f"retinue-manager {command}",
        object_kind=object_kind,
        object=name,
        summary=summary,
        code="OK",
    )


async def count_denials(tx: AsyncSession, counts: Mapping[Denial, int], manager: str) -> None:
    """Adds denied calls that a manager has counted to their records."""
    if not counts:
        return
    rows = [
        {
            "id": _id_of(denial, manager),
            "category": Category.DENIAL,
            "create_time": denial.minute,
            "end_time": func.clock_timestamp(),
            **{name: value for name, value in asdict(denial).items() if name != "minute"},
            "manager": manager,
            "count": number,
        }
        for denial, number in counts.items()
    ]
    adding = insert(AuditRecord).values(rows)
    total = col(AuditRecord.count) + adding.excluded["count"]
    await tx.execute(
        adding.on_conflict_do_update(index_elements=["id"], set_={"count": total, "end_time": adding.excluded.end_time})
    )


def _id_of(denial: Denial, manager: str) -> uuid.UUID:
    return uuid.uuid5(_DENIALS, "\n".join((manager, *map(str, asdict(denial).values()))))


async def find_others(
    tx: Transaction, kind: str, references: Sequence[str], visibility: Visibility, caller: str
) -> list[str]:
    """Returns the sessions or endpoints that references of a caller mean, who may see them, and that others own:
    `OWNER/NAME` of a session, `PROJECT/NAME` of an endpoint. What means none is left out.
    """
    names: list[str] = []
    for begin in range(0, len(references), _REFERENCES):
        portion = references[begin : begin + _REFERENCES]
        if kind == "session":
            ids = list((await lookup.find(tx, portion, visibility, caller)).values())
            found = select(Session.owner, Session.name).where(col(Session.id).in_(ids), Session.owner != caller)
        else:
            ids = [
                meant[0] for meant in [await endpoints.find(tx, one, visibility) for one in portion] if len(meant) == 1
            ]
            found = select(Endpoint.project, Endpoint.name).where(col(Endpoint.id).in_(ids), Endpoint.owner != caller)
        names += [f"{of}/{name}" for of, name in await tx.execute(found)]
    return sorted(names)


async def list_page(
    tx: AsyncSession,
    *,
    terms: Sequence[tuple[str, str, str]],
    start: dt.datetime | None,
    end: dt.datetime | None,
    after: tuple[dt.datetime, uuid.UUID] | None,
    limit: int,
) -> list[StoredRecord]:
    """Returns records from `start` on and before `end`, newest first. `terms` are (column, `=` or `!=`, value);
    a method is also found without its service. `after` are time and id of the last record of the page before.
    """
    conditions = [_condition(*term) for term in terms]
    if start is not None:
        conditions.append(col(AuditRecord.create_time) >= start)
    if end is not None:
        conditions.append(col(AuditRecord.create_time) < end)
    place = tuple_(col(AuditRecord.create_time), col(AuditRecord.id))
    if after is not None:
        conditions.append(place < after)
    found = await tx.execute(
        select(AuditRecord)
        .where(*conditions)
        .order_by(col(AuditRecord.create_time).desc(), col(AuditRecord.id).desc())
        .limit(limit)
    )
    return [record_of(StoredRecord, row) for row in found.scalars()]


def _condition(field: str, operator: str, value: str) -> ColumnElement[bool]:
    column = col(getattr(AuditRecord, field))
    same: ColumnElement[bool] = column == value
    if field == "method":
        same = or_(same, func.split_part(column, "/", 3) == value)
    return same if operator == "=" else ~same


async def forget(tx: AsyncSession, age: dt.timedelta | None, most: int = MAX_RECORDS) -> int:
    """Removes some of the records that are older than `age`, None for no bound, and of those beyond the newest `most`
    of their category; returns how many, 0 when there are none left.
    """
    past: list[ColumnElement[bool]] = [col(AuditRecord.create_time) < func.now() - age] if age is not None else []
    for category in Category:
        newest = (
            select(AuditRecord.create_time, AuditRecord.id)
            .where(AuditRecord.category == category)
            .order_by(col(AuditRecord.create_time).desc(), col(AuditRecord.id).desc())
            .offset(most)
            .limit(1)
        )
        if (oldest := (await tx.execute(newest)).one_or_none()) is not None:
            place = tuple_(col(AuditRecord.create_time), col(AuditRecord.id))
            past.append(and_(col(AuditRecord.category) == category, place <= (oldest[0], oldest[1])))
    if not past:
        return 0
    chosen = select(AuditRecord.id).where(or_(*past)).limit(_PORTION)
    gone = await tx.execute(delete(AuditRecord).where(col(AuditRecord.id).in_(chosen)).returning(col(AuditRecord.id)))
    return len(gone.all())
