"""Finds sessions by what users call them: ids, prefixes of ids, numbers and names."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Select,
    Text,
    Uuid,
    and_,
    distinct,
    func,
    literal_column,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from retinue.manager.store.postgres.constructs import Construct, objects, one_of, table_of, words
from retinue.manager.store.postgres.database import Query, Transaction, fetch
from retinue.manager.store.postgres.recordset import Row, recordset
from retinue.manager.store.sessions.visibility import Visibility
from retinue.manager.store.tables import Session

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sqlmodel.ext.asyncio.session import AsyncSession


_session = table_of(Session)
# As indexes have it.
_IS_OVER = _session.c.state.in_(words("TERMINATED", "CANCELLED"))
_IS_LIVE = _session.c.state.not_in(words("TERMINATED", "CANCELLED"))
# To a caller who does not see everything.
_IS_VISIBLE = Visibility(everything=False, owner="").condition(_session)
_UUID_DIGITS = 32
# So many fit a bigint whatever they are.
_NUMBER_DIGITS = 18
_SHORTEST_PREFIX = 8


async def find(
    tx: Transaction, references: Collection[str], visibility: Visibility, caller: str
) -> dict[str, uuid.UUID]:
    """Returns the sessions that references mean, without those that mean none or several: an id, a unique prefix of one
    (8 characters or more), a number, the name of a session of the caller, or owner and name as `OWNER/NAME`: the live
    one, else the newest that ended. A live name of digits comes before a number, and a number before all else.
    """
    return await fetch(tx, finding(references, visibility, caller))


def _making_found(visible: ColumnElement[bool]) -> Construct:
    """Sessions that references may mean, by what each way finds."""
    rows = objects(
        "given",
        "rows",
        reference=Text(),
        named_owner=Text(),
        name=Text(),
        number=BigInteger(),
        low=Uuid(),
        high=Uuid(),
    )
    r = select(*rows.c).cte("r").prefix_with("MATERIALIZED")
    is_named = and_(_session.c.owner == r.c.named_owner, _session.c.name == r.c.name)

    def way(by: str) -> Select[tuple[str, str]]:
        return select(r.c.reference, literal_column(f"'{by}'", Text()).label("by"))

    ids = select(_session.c.id).where(_session.c.id.between(r.c.low, r.c.high), visible).limit(2)
    ended = select(_session.c.id).where(is_named, _IS_OVER, visible).order_by(_session.c.number.desc()).limit(1)
    by_id, newest = ids.lateral("by_id"), ended.lateral("newest")
    return Construct(
        union_all(
            way("live").add_columns(_session.c.id).join_from(r, _session, is_named).where(_IS_LIVE, visible),
            way("number")
            .add_columns(_session.c.id)
            .join_from(r, _session, _session.c.number == r.c.number)
            .where(visible),
            way("id").add_columns(by_id.c.id).join_from(r, by_id, true()),
            way("ended").add_columns(newest.c.id).join_from(r, newest, true()),
        )
    )


_FOUND_AMONG_ALL = _making_found(true())
_FOUND = _making_found(_IS_VISIBLE)


def finding(references: Collection[str], visibility: Visibility, caller: str) -> Query[dict[str, uuid.UUID]]:
    """Returns `find` as a query among others."""
    meanings = [_meaning(reference, caller) for reference in references if "\0" not in reference]
    return Query(
        _FOUND_AMONG_ALL if visibility.everything else _FOUND,
        {"rows": recordset(meanings), **visibility.parameters()},
        read=_meant_by_each,
    )


def _meant_by_each(rows: Iterable[Row]) -> dict[str, uuid.UUID]:
    candidates = _candidates(rows)
    meant = {reference: _meant(reference, found) for reference, found in candidates.items()}
    return {reference: next(iter(ids)) for reference, ids in meant.items() if len(ids) == 1}


def _candidates(rows: Iterable[Row]) -> dict[str, dict[str, set[uuid.UUID]]]:
    """Returns the sessions that may be meant, by reference and by the way they were found."""
    candidates: dict[str, dict[str, set[uuid.UUID]]] = {}
    for row in rows:
        candidates.setdefault(row["reference"], {}).setdefault(row["by"], set()).add(row["id"])
    return candidates


def _meant(reference: str, found: Mapping[str, set[uuid.UUID]]) -> set[uuid.UUID]:
    """Returns the sessions that a reference may mean, of those found by each way."""
    exact = found.get("live") or found.get("number") or set()
    is_exact = bool(exact) and as_number(reference) is not None
    return (exact if is_exact else exact | found.get("id", set())) or found.get("ended", set())


async def owners_of(
    tx: AsyncSession, names: Collection[str], visibility: Visibility, limit: int
) -> dict[str, list[str]]:
    """Returns the first owners, in their order, of live sessions of each name that the caller may read."""
    owners = func.array_agg(aggregate_order_by(distinct(_session.c.owner), _session.c.owner), type_=ARRAY(Text))
    query = (
        select(_session.c.name, owners[1:limit])
        .where(_IS_LIVE, _session.c.name == one_of("names"), visibility.condition(_session))
        .group_by(_session.c.name)
    )
    readable = [name for name in names if "\0" not in name]
    rows = await tx.execute(query, {"names": readable, **visibility.parameters()})
    return {name: list(first) for name, first in rows}


def as_number(reference: str) -> int | None:
    """Returns the number of a session that a reference may be."""
    is_number = reference.isascii() and reference.isdecimal() and not reference.startswith("0")
    return int(reference) if is_number and len(reference) <= _NUMBER_DIGITS else None


def _meaning(reference: str, caller: str) -> dict[str, Any]:
    """Returns what a reference may mean: a name of an owner, a number, a range of ids; None where it means no such."""
    owner, slash, name = reference.partition("/")
    # Neither ids nor names have a slash.
    named = {"named_owner": owner, "name": name} if slash else {"named_owner": caller, "name": reference}
    digits = reference.replace("-", "").lower()
    is_id = _SHORTEST_PREFIX <= len(digits) <= _UUID_DIGITS and all(digit in "0123456789abcdef" for digit in digits)
    return {
        "reference": reference,
        **named,
        "number": as_number(reference),
        "low": uuid.UUID(digits.ljust(_UUID_DIGITS, "0")) if is_id else None,
        "high": uuid.UUID(digits.ljust(_UUID_DIGITS, "f")) if is_id else None,
    }
