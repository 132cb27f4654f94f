"""Lists sessions by pages, with filters."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Text,
    Uuid,
    cast,
    func,
    literal,
    or_,
    select,
    tuple_,
)

from retinue.manager.store.postgres.constructs import columns_of, one_of, parameter, table_of, value_of, words
from retinue.manager.store.postgres.recordset import fetched
from retinue.manager.store.sessions import session_records
from retinue.manager.store.sessions.session_records import SessionRecord
from retinue.manager.store.sessions.visibility import Visibility
from retinue.manager.store.tables import Session
from retinue.rpc.loop_slices import in_slices

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession


_session = table_of(Session)
# As indexes have it.
_IS_LIVE = _session.c.state.not_in(words("TERMINATED", "CANCELLED"))
_IS_ASKED = _session.c.id == one_of("ids", Uuid())
# To a caller who does not see everything.
_IS_VISIBLE = Visibility(everything=False, owner="").condition(_session)
# What a page takes at most of the database, the stored requests and so much for each kernel:
# what is shown of them is less.
_PAGE_BYTES, _FULL_PAGE_BYTES, _KERNEL_BYTES = 4 * 1024 * 1024, 1024 * 1024, 1024
_LISTED = columns_of(Session, SessionRecord)
# Details are not read for lists.
_LISTED = _LISTED[: [item.name for item in _LISTED].index("end_time") + 1]


def _ordered_by(table: FromClause) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    return table.c.create_time, table.c.id


def _order(table: FromClause, *, newest_first: bool) -> list[ColumnElement[Any]]:
    return [item.desc() if newest_first else item.asc() for item in _ordered_by(table)]


@lru_cache(maxsize=256)
def _page(
    everything: bool, ended: bool, newest_first: bool, continues: bool, shape: tuple[tuple[str, str], ...]
) -> Select[*tuple[Any, ...]]:
    """A page of what a caller may read, of live sessions or of all; made once for each kind of question."""
    page = select(*_LISTED, _session.c.spec_bytes, _session.c.cluster_size).where(*_comparisons(shape))
    if not everything:
        page = page.where(_IS_VISIBLE)
    if not ended:
        page = page.where(_IS_LIVE)
    if continues:
        names = ("after_time", "after_id")
        place = tuple_(*_ordered_by(_session))
        last = tuple_(*(parameter(name, item.type) for name, item in zip(names, _ordered_by(_session), strict=True)))
        page = page.where(place < last if newest_first else place > last)
    limited = page.limit(parameter("rows", Integer()))
    one = limited.order_by(*_order(_session, newest_first=newest_first)).subquery("one")
    size = one.c.spec_bytes + _KERNEL_BYTES * one.c.cluster_size
    counted = select(
        *one.c,
        func.count().over().label("found"),
        size.label("size"),
        func.sum(size).over(order_by=_order(one, newest_first=newest_first), rows=(None, 0)).label("bytes"),
    ).subquery("counted")
    return (
        select(*(counted.c[item.name] for item in _LISTED), counted.c.found)
        .where(or_(counted.c.bytes <= parameter("most", BigInteger()), counted.c.bytes == counted.c.size))
        .order_by(*_order(counted, newest_first=newest_first))
    )


async def list_page(
    tx: AsyncSession,
    visibility: Visibility,
    *,
    terms: Sequence[tuple[str, str, str]],
    ended: bool,
    newest_first: bool,
    after: tuple[str, str] | None,
    limit: int,
    full: bool = False,
) -> tuple[list[SessionRecord], int]:
    """Returns one page by creation time and id, with as many rows of at most `limit` as the bytes of a page hold, and
    how many there were up to `limit`. `terms` are (field, `=` or `!=`, value);
    `after` is the last row of the page before; with `full`, requests are whole.
    """
    shape = tuple((field, operator) for field, operator, _ in terms)
    query = _page(visibility.everything, ended, newest_first, after is not None, shape)
    place = {} if after is None else {"after_time": after[0], "after_id": after[1]}
    most = _FULL_PAGE_BYTES if full else _PAGE_BYTES
    given = {**visibility.parameters(), **_values(terms), **place, "rows": limit, "most": most}
    found = await tx.execute(query, given)
    rows = fetched(found)
    return await in_slices(rows, session_records.listed_session), rows[0]["found"] if rows else 0


def _comparisons(shape: Iterable[tuple[str, str]]) -> list[ColumnElement[bool]]:
    """Returns the conditions of terms, (field, operator), on the parameters of `_values`."""
    conditions = []
    for position, (field, operator) in enumerate(shape):
        differs, name = operator == "!=", f"value{position}"
        if field == "number":
            # It is never NULL, and an index serves plain comparisons only.
            number = parameter(name, BigInteger())
            conditions.append(_session.c.number != number if differs else _session.c.number == number)
            continue
        label = field.removeprefix("labels.")
        compared = cast(_session.c[field], Text) if label == field else value_of(_session.c.labels, literal(label))
        value = parameter(name, Text())
        conditions.append(compared.is_distinct_from(value) if differs else compared.is_not_distinct_from(value))
    return conditions


def _values(terms: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    return {f"value{position}": value for position, (_, _, value) in enumerate(terms)}


async def matching(
    tx: AsyncSession, terms: Sequence[tuple[str, str, str]], session_ids: Iterable[uuid.UUID]
) -> set[uuid.UUID]:
    """Returns those of some sessions that are there and match; `terms` are as in `list_page`."""
    compared = _comparisons((field, operator) for field, operator, _ in terms)
    query = select(_session.c.id).where(_IS_ASKED, *compared)
    found = await tx.execute(query, {"ids": list(session_ids), **_values(terms)})
    return set(found.scalars())
