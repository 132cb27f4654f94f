"""Templates and their versions."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.postgres.recordset import Row, fetched

# A version of a template with the template it is one of.
_BASIC_COLUMNS = """
    t.id, t.name, t.project, t.owner, t.version AS newest, t.create_time, t.delete_time,
    v.version, v.description, v.author, v.create_time AS update_time
"""
_COLUMNS = f"{_BASIC_COLUMNS}, v.spec::text AS spec"
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

    def condition(self) -> str:
        """Returns the condition as SQL over the parameters of `parameters`."""
        own = "t.project IS NOT NULL" if self.projects is None else "t.project = ANY(:scope_projects)"
        return f"({own} OR t.project IS NULL)" if self.shared else own

    def parameters(self) -> dict[str, Any]:
        """Returns the values that `condition` needs."""
        return {} if self.projects is None else {"scope_projects": list(self.projects)}


class Page(NamedTuple):
    """The first templates that a list found, and how many it found up to its limit."""

    templates: list[TemplateRecord]
    found: int


async def create(tx: AsyncSession, name: str, project: str | None, author: str) -> uuid.UUID | None:
    """Inserts a template without a version yet; returns its id, None when the name is taken."""
    made = await tx.execute(
        text("""
            INSERT INTO template (id, project, name, owner, version) VALUES (:id, :project, :name, :author, 0)
            ON CONFLICT DO NOTHING RETURNING id
        """),
        {"id": uuid.uuid4(), "project": project, "name": name, "author": author},
    )
    return made.scalar_one_or_none()


async def add_version(tx: AsyncSession, template_id: uuid.UUID, *, description: str, spec: str, author: str) -> None:
    """Inserts the next version of a template that the transaction has locked."""
    await tx.execute(
        text("""
            WITH t AS (UPDATE template SET version = version + 1 WHERE id = :id RETURNING id, version)
            INSERT INTO template_version (template_id, version, description, spec, author)
            SELECT t.id, t.version, :description, CAST(:spec AS jsonb), :author FROM t
        """),
        {"id": template_id, "description": description, "spec": spec, "author": author},
    )


async def named(tx: AsyncSession, name: str, scope: Scope) -> list[TemplateName]:
    """Returns the templates with a name, those of projects first; at most two."""
    found = await tx.execute(
        text(f"""
            SELECT t.id, t.project FROM template t WHERE t.name = :name AND t.delete_time IS NULL AND {scope.condition()}
            ORDER BY t.project NULLS LAST LIMIT 2
        """),  # noqa: S608  # the condition is ours, its values are parameters
        {"name": name, **scope.parameters()},
    )
    return [TemplateName(row["id"], row["project"]) for row in fetched(found)]


async def read(
    tx: AsyncSession, template_id: uuid.UUID, scope: Scope, *, version: int = 0, lock: bool = False
) -> TemplateRecord | None:
    """Returns a version of a template, 0 for the newest, deleted or not; None when there is none in the scope. With
    `lock`, it is locked until the commit.
    """
    if lock:
        # By itself: what is read with the lock in one statement may be older than the lock.
        await tx.execute(text("SELECT FROM template WHERE id = :id FOR UPDATE"), {"id": template_id})
    found = await tx.execute(
        text(f"""
            SELECT {_COLUMNS} FROM template t
            JOIN template_version v ON v.template_id = t.id AND v.version = coalesce(nullif(:version, 0), t.version)
            WHERE t.id = :id AND {scope.condition()}
        """),  # noqa: S608
        {"id": template_id, "version": version, **scope.parameters()},
    )
    rows = fetched(found)
    return _template(rows[0]) if rows else None


async def list_page(tx: AsyncSession, scope: Scope, *, after: tuple[str, str], limit: int, full: bool) -> Page:
    """Returns templates in their newest versions in the order of their names and projects; `after` is (name, project)
    of the one before, '' for none. Without `full` they have no `spec`;
    with it there are as many as the bytes of a page hold.
    """
    query = f"""
        SELECT {_columns(full=full)} FROM template t JOIN template_version v ON v.template_id = t.id AND v.version = t.version
        WHERE t.delete_time IS NULL AND {scope.condition()} AND (t.name, coalesce(t.project, '')) > (:name, :project)
        ORDER BY t.name, coalesce(t.project, '') LIMIT :limit
    """  # noqa: S608
    values = {"name": after[0], "project": after[1], "limit": limit, **scope.parameters()}
    return await _bounded(tx, query, "name, coalesce(project, '')", values)


async def list_versions(tx: AsyncSession, template_id: uuid.UUID, *, before: int, limit: int, full: bool) -> Page:
    """Returns versions of a template, newest first, only those before a number unless that is 0;
    otherwise as `list_page`.
    """
    query = f"""
        SELECT {_columns(full=full)} FROM template t JOIN template_version v ON v.template_id = t.id
        WHERE t.id = :id AND (:before = 0 OR v.version < :before) ORDER BY v.version DESC LIMIT :limit
    """  # noqa: S608
    values = {"id": template_id, "before": before, "limit": limit}
    return await _bounded(tx, query, "version DESC", values)


def _columns(*, full: bool) -> str:
    return f"{_COLUMNS}, v.spec_bytes" if full else f"{_BASIC_COLUMNS}, 0 AS spec_bytes"


async def _bounded(tx: AsyncSession, query: str, order: str, values: Mapping[str, Any]) -> Page:
    """Returns the first rows of a query, at least one, of which the requests fit in a page."""
    found = await tx.execute(
        text(f"""
            SELECT * FROM (
                SELECT p.*, count(*) OVER () AS found, sum(p.spec_bytes) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) AS bytes
                FROM ({query}) p
            ) p
            WHERE p.bytes <= :bytes OR p.bytes = p.spec_bytes ORDER BY {order}
        """),  # noqa: S608  # all of it is ours, its values are parameters
        {**values, "bytes": _PAGE_BYTES},
    )
    rows = fetched(found)
    return Page([_template(row) for row in rows], rows[0]["found"] if rows else 0)


def _template(row: Row) -> TemplateRecord:
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
    await tx.execute(text("UPDATE template SET delete_time = now() WHERE id = :id"), {"id": template_id})
