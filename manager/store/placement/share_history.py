"""Shares over time, of users, projects and whole groups: sums by hour of samples that the leader takes of live claims.

A sample of a group counts for its hour whether anything is held or not, so a mean has no gap where nobody held
anything; hours in which no manager led have no sample, and no mean.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    Text,
    and_,
    case,
    cast,
    delete,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert

from retinue.manager.store.placement.shares import dominant
from retinue.manager.store.postgres.constructs import Construct, objects, seconds, table_of, word
from retinue.manager.store.postgres.recordset import fetched, recordset
from retinue.manager.store.tables import Claim, Kernel, ResourceGroup, Session, ShareHour

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

_claim, _kernel, _session = table_of(Claim), table_of(Kernel), table_of(Session)
_group, _hour = table_of(ResourceGroup), table_of(ShareHour)


class ShareKind(Enum):
    """Whose share it is; values are stored."""

    RESOURCE_GROUP = "RESOURCE_GROUP"
    """All of a group together; its name is empty."""
    PROJECT = "PROJECT"
    USER = "USER"


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose share it is."""

    kind: ShareKind
    name: str


@dataclass(frozen=True, slots=True)
class Holding:
    """The amount of a slot that the sessions of an owner in a project hold in a group."""

    resource_group: str
    owner: str
    project: str
    slot: str
    amount: int


@dataclass(frozen=True, slots=True)
class SubjectTotal:
    """A subject with the sum of its samples in a range."""

    subject: Subject
    total: float


@dataclass(frozen=True, slots=True)
class SharePoint:
    """The mean and the largest share within an interval."""

    start: dt.datetime
    share: float
    peak: float


def sampled(
    capacities: Mapping[str, Mapping[str, int]], holdings: Iterable[Holding]
) -> dict[tuple[str, Subject], float]:
    """Returns the dominant shares of all who hold anything, by group and subject, and those of the groups that there
    are. A share is above 1 while a group has less than is held in it.
    """
    whole = Subject(ShareKind.RESOURCE_GROUP, "")
    held: dict[tuple[str, Subject], dict[str, int]] = {(group, whole): {} for group in capacities}
    for item in holdings:
        for subject in (whole, Subject(ShareKind.USER, item.owner), Subject(ShareKind.PROJECT, item.project)):
            amounts = held.setdefault((item.resource_group, subject), {})
            amounts[item.slot] = amounts.get(item.slot, 0) + item.amount
    found: dict[tuple[str, Subject], float] = {}
    for (group, subject), amounts in held.items():
        _, numerator, denominator = dominant(amounts, capacities.get(group, {}))
        if denominator or subject == whole:
            found[group, subject] = numerator / denominator if denominator else 0.0
    return found


_BY = (_claim.c.resource_group, _claim.c.owner, _session.c.project, _claim.c.slot)
_HOLDINGS = (
    select(*_BY, cast(func.sum(_claim.c.amount), BigInteger).label("amount"))
    .join_from(_claim, _kernel, _kernel.c.id == _claim.c.kernel_id)
    .join(_session, _session.c.id == _kernel.c.session_id)
    .where(_claim.c.release_time.is_(None))
    .group_by(*_BY)
)
# As the kinds are declared.
_ORDER = case(
    *((_hour.c.kind == word(kind.value), literal_column(str(place))) for place, kind in enumerate(ShareKind)),
    else_=literal_column("9", Integer()),
)
_THIS_HOUR = func.date_trunc("hour", func.now(), "UTC")


def _making_added() -> Construct:
    keys = {"resource_group": Text(), "kind": Text(), "name": Text()}
    given = objects("given", "rows", **keys, share=Float())
    adding = insert(_hour).from_select(
        ["resource_group", "kind", "name", "hour", "samples", "share_sum", "peak"],
        select(*(given.c[key] for key in keys), _THIS_HOUR, literal(1), given.c.share, given.c.share),
        include_defaults=False,
    )
    return Construct(
        adding.on_conflict_do_update(
            index_elements=[*keys, "hour"],
            set_={
                "samples": _hour.c.samples + 1,
                "share_sum": _hour.c.share_sum + adding.excluded.share_sum,
                "peak": func.greatest(_hour.c.peak, adding.excluded.peak),
            },
        )
    )


_ADDED = _making_added()


@dataclass(frozen=True, slots=True)
class _Row:
    resource_group: str
    kind: str
    name: str
    share: float


async def record(tx: AsyncSession) -> None:
    """Adds a sample of what is held now to this hour (UTC)."""
    groups = await tx.execute(select(_group.c.name, _group.c.capacity))
    capacities = {row.name: row.capacity for row in groups}
    holdings = [Holding(**row) for row in fetched(await tx.execute(_HOLDINGS))]
    rows = [
        _Row(group, subject.kind.value, subject.name, share)
        for (group, subject), share in sorted(
            sampled(capacities, holdings).items(), key=lambda item: (item[0][0], item[0][1].kind.value, item[0][1].name)
        )
    ]
    await tx.execute(_ADDED.statement, _ADDED.parameters({"rows": recordset(rows)}))


async def forget(tx: AsyncSession, age: dt.timedelta) -> None:
    """Removes hours that are older."""
    await tx.execute(delete(_hour).where(_hour.c.hour < func.now() - age))


async def forget_group(tx: AsyncSession, group: str) -> None:
    """Removes what is known of a group."""
    await tx.execute(delete(_hour).where(_hour.c.resource_group == group))


@dataclass(frozen=True, slots=True)
class Range:
    """Hours of a group that begin at `start` or later and before `end`."""

    resource_group: str
    start: dt.datetime
    end: dt.datetime

    def condition(self) -> ColumnElement[bool]:
        """Returns whether an hour is one of them."""
        return and_(_hour.c.resource_group == self.resource_group, _hour.c.hour >= self.start, _hour.c.hour < self.end)


async def read_totals(
    tx: AsyncSession,
    within: Range,
    *,
    visible: tuple[str, Collection[str]] | None,
    after: SubjectTotal | None,
    limit: int,
) -> list[SubjectTotal]:
    """Returns whose shares there are: the group, then projects and users, each the largest first.

    `visible` is a user with projects: of users only this one, of projects only these; None: all.
    """
    total = func.sum(_hour.c.share_sum)
    query = (
        select(_hour.c.kind, _hour.c.name, total.label("total"))
        .where(within.condition())
        .group_by(_hour.c.kind, _hour.c.name)
        .order_by(_ORDER, total.desc(), _hour.c.name)
        .limit(limit)
    )
    if visible is not None:
        user, projects = visible
        query = query.where(
            or_(
                _hour.c.kind == word("RESOURCE_GROUP"),
                and_(_hour.c.kind == word("USER"), _hour.c.name == user),
                and_(_hour.c.kind == word("PROJECT"), _hour.c.name.in_(projects)),
            )
        )
    if after is not None:
        last = (list(ShareKind).index(after.subject.kind), -after.total, after.subject.name)
        query = query.having(tuple_(_ORDER, -total, _hour.c.name) > tuple_(*map(literal, last)))
    rows = await tx.execute(query)
    return [SubjectTotal(Subject(ShareKind(kind), name), total) for kind, name, total in rows]


async def read_points(
    tx: AsyncSession, within: Range, interval: dt.timedelta, subjects: Collection[Subject]
) -> dict[Subject, Sequence[SharePoint]]:
    """Returns the shares of these within each interval that has a sample, the oldest first: 0 where nothing was held.

    Intervals begin at multiples of their length since 1970.
    """
    # In the text: a parameter that comes twice is two for the server, and groups nothing.
    length = literal_column(str(int(interval.total_seconds())), BigInteger())
    start = cast(func.floor(seconds(_hour.c.hour) / length), BigInteger) * length
    amounts = (func.sum(_hour.c.share_sum), func.max(_hour.c.peak))
    keys = [(subject.kind.value, subject.name) for subject in subjects]
    counted = await tx.execute(
        select(start.label("start"), cast(func.sum(_hour.c.samples), Integer).label("samples"))
        .where(within.condition(), _hour.c.kind == word("RESOURCE_GROUP"))
        .group_by(start)
        .order_by(start)
    )
    samples = {row.start: row.samples for row in counted}
    rows = await tx.execute(
        select(_hour.c.kind, _hour.c.name, start, *amounts)
        .where(within.condition(), tuple_(_hour.c.kind, _hour.c.name).in_(keys))
        .group_by(_hour.c.kind, _hour.c.name, start)
    )
    found: dict[Subject, dict[int, tuple[float, float]]] = {subject: {} for subject in subjects}
    for kind, name, begin, total, peak in rows:
        found[Subject(ShareKind(kind), name)][begin] = (total, peak)
    return {
        subject: [
            SharePoint(dt.datetime.fromtimestamp(begin, dt.UTC), total / number, peak)
            for begin, number in samples.items()
            for total, peak in [amounts.get(begin, (0.0, 0.0))]
        ]
        for subject, amounts in found.items()
    }
