"""Templates and their versions."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, Select, Text, and_, cast, func, literal, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import JSONB, insert

from retinue.manager.store.postgres.constructs import table_of, word
from retinue.manager.store.postgres.recordset import Row, fetched
from retinue.manager.store.tables import Template, TemplateVersion

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

_template, _version = table_of(Template), table_of(TemplateVersion)
# A version of a template with the template it is one of.
_BASIC = [
    _template.c.id,
    _template.c.name,
    _template.c.project,
    _template.c.owner,
    _template.c.version.label("newest"),
    _template.c.create_time,
    _template.c.delete_time,
    _version.c.version,
    _version.c.description,
    _version.c.author,
    _version.c.create_time.label("update_time"),
]
_SPEC = cast(_version.c.spec, Text).label("spec")
_OF_TEMPLATE = _version.c.template_id == _template.c.id
_PROJECT = func.coalesce(_template.c.project, word(""))
# What a page of whole templates takes of the database.
_PAGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A version of a template. `project` is None for one of all projects.

    `spec` is the partial request, as JSON of its message; None where it was not asked for.
    """

    id: uuid.UUID
    name: str
    project: str | None
    owner: str
    newest: int
    create_time: dt.datetime
    delete_time: dt.datetime | None
    version: int
    description: str
    author: str
    update_time: dt.datetime
    spec: str | None


@dataclass(frozen=True, slots=True)
class TemplateName:
    """A template with some name: its id, and its project, None for one of all projects."""

    id: uuid.UUID
    project: str | None


@dataclass(frozen=True, slots=True)
class Scope:
    """The templates of `projects` (None: of every project) and, with `shared`, those of all projects."""

    projects: Collection[str] | None
    shared: bool = True

    def condition(self) -> ColumnElement[bool]:
        """Returns the condition on templates."""
        of_all = _template.c.project.is_(None)
        own = ~of_all if self.projects is None else _template.c.project.in_(list(self.projects))
        return or_(own, of_all) if self.shared else own


class Page(NamedTuple):
    """The first templates that a list found, and how many it found up to its limit."""

    templates: list[TemplateRecord]
    found: int


async def create(tx: AsyncSession, name: str, project: str | None, author: str) -> uuid.UUID | None:
    """Inserts a template without a version yet; returns its id, None when the name is taken."""
    new = insert(_template).values(id=uuid.uuid4(), project=project, name=name, owner=author, version=0)
    made = await tx.execute(new.on_conflict_do_nothing().returning(_template.c.id))
    return made.scalar_one_or_none()


async def add_version(tx: AsyncSession, template_id: uuid.UUID, *, description: str, spec: str, author: str) -> None:
    """Inserts the next version of a template that the transaction has locked."""
    t = (
        update(_template)
        .where(_template.c.id == template_id)
        .values(version=_template.c.version + 1)
        .returning(_template.c.id, _template.c.version)
        .cte("t")
    )
    stored = cast(literal(spec, Text()), JSONB)
    new = select(t.c.id, t.c.version, literal(description), stored, literal(author))
    columns = ["template_id", "version", "description", "spec", "author"]
    await tx.execute(insert(_version).from_select(columns, new, include_defaults=False))


async def named(tx: AsyncSession, name: str, scope: Scope) -> list[TemplateName]:
    """Returns the templates with a name, those of projects first; at most two."""
    query = select(_template.c.id, _template.c.project).where(
        _template.c.name == name, _template.c.delete_time.is_(None), scope.condition()
    )
    found = await tx.execute(query.order_by(_template.c.project.nulls_last()).limit(2))
    return [TemplateName(row["id"], row["project"]) for row in fetched(found)]


async def read(
    tx: AsyncSession, template_id: uuid.UUID, scope: Scope, *, version: int = 0, lock: bool = False
) -> TemplateRecord | None:
    """Returns a version of a template, 0 for the newest, deleted or not; None when there is none in the scope. With
    `lock`, it is locked until the commit.
    """
    if lock:
        # By itself: what is read with the lock in one statement may be older than the lock.
        await tx.execute(select(_template.c.id).where(_template.c.id == template_id).with_for_update())
    number = version or _template.c.version
    query = (
        select(*_BASIC, _SPEC)
        .join_from(_template, _version, and_(_OF_TEMPLATE, _version.c.version == number))
        .where(_template.c.id == template_id, scope.condition())
    )
    found = await tx.execute(query)
    rows = fetched(found)
    return _record(rows[0]) if rows else None


async def list_page(tx: AsyncSession, scope: Scope, *, after: tuple[str, str], limit: int, full: bool) -> Page:
    """Returns templates in their newest versions in the order of their names and projects; `after` is (name, project)
    of the one before, '' for none. Without `full` they have no `spec`;
    with it there are as many as the bytes of a page hold.
    """
    query = (
        select(*_columns(full=full))
        .join_from(_template, _version, and_(_OF_TEMPLATE, _version.c.version == _template.c.version))
        .where(_template.c.delete_time.is_(None), scope.condition())
        .where(tuple_(_template.c.name, _PROJECT) > tuple_(*map(literal, after)))
        .order_by(_template.c.name, _PROJECT)
        .limit(limit)
    )
    return await _bounded(tx, query, lambda page: [page.c.name, func.coalesce(page.c.project, word(""))])


async def list_versions(tx: AsyncSession, template_id: uuid.UUID, *, before: int, limit: int, full: bool) -> Page:
    """Returns versions of a template, newest first, only those before a number unless that is 0;
    otherwise as `list_page`.
    """
    query = select(*_columns(full=full)).join_from(_template, _version, _OF_TEMPLATE)
    query = query.where(_template.c.id == template_id).order_by(_version.c.version.desc()).limit(limit)
    page = query.where(_version.c.version < before) if before else query
    return await _bounded(tx, page, lambda page: [page.c.version.desc()])


def _columns(*, full: bool) -> list[ColumnElement[Any]]:
    return [*_BASIC, _SPEC, _version.c.spec_bytes] if full else [*_BASIC, literal(0).label("spec_bytes")]


async def _bounded(
    tx: AsyncSession, query: Select[*tuple[Any, ...]], order: Callable[[FromClause], Sequence[ColumnElement[Any]]]
) -> Page:
    """Returns the first rows of a query, at least one, of which the requests fit in a page."""
    page = query.subquery("page")
    size = func.sum(page.c.spec_bytes).over(order_by=order(page), rows=(None, 0))
    p = select(*page.c, func.count().over().label("found"), size.label("bytes")).subquery("p")
    fits = or_(p.c.bytes <= _PAGE_BYTES, p.c.bytes == p.c.spec_bytes)
    rows = fetched(await tx.execute(select(p).where(fits).order_by(*order(p))))
    return Page([_record(row) for row in rows], rows[0]["found"] if rows else 0)


def _record(row: Row) -> TemplateRecord:
    return TemplateRecord(
        row["id"],
        row["name"],
        row["project"],
        row["owner"],
        row["newest"],
        row["create_time"],
        row["delete_time"],
        row["version"],
        row["description"],
        row["author"],
        row["update_time"],
        row.get("spec"),
    )


async def delete(tx: AsyncSession, template_id: uuid.UUID) -> None:
    """Deletes a template: its name is free again, and its versions stay."""
    await tx.execute(update(_template).where(_template.c.id == template_id).values(delete_time=func.now()))
