"""Templates and their versions."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.recordset import Row, fetched, recordset

# A version of a template with the template it is one of.
_BASIC_COLUMNS = """
    t.id, t.name, t.project, t.owner, t.version AS newest, t.create_time, t.delete_time,
    v.version, v.description, v.author, v.create_time AS update_time
"""
_COLUMNS = f"{_BASIC_COLUMNS}, v.spec"
# What a page of whole templates takes of the database.
_PAGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose templates: those of `projects` (None: of every project) and, with `shared`, those of all projects."""

    projects: Collection[str] | None
    shared: bool = True

    def condition(self) -> str:
        """As SQL over the parameters of `parameters`."""
        own = "t.project IS NOT NULL" if self.projects is None else "t.project = ANY(:scope_projects)"
        return f"({own} OR t.project IS NULL)" if self.shared else own

    def parameters(self) -> dict[str, Any]:
        """The values that `condition` needs."""
        return {} if self.projects is None else {"scope_projects": list(self.projects)}


async def create(tx: AsyncSession, name: str, project: str | None, author: str) -> uuid.UUID | None:
    """A new template, without a version yet; None when the name is taken."""
    made = await tx.execute(
        text("""
            INSERT INTO template (id, project, name, owner, version) VALUES (:id, :project, :name, :author, 0)
            ON CONFLICT DO NOTHING RETURNING id
        """),
        {"id": uuid.uuid4(), "project": project, "name": name, "author": author},
    )
    return made.scalar_one_or_none()


async def add_version(
    tx: AsyncSession, template_id: uuid.UUID, *, description: str, spec: Mapping[str, Any], author: str
) -> None:
    """The next version of a template that the transaction holds."""
    await tx.execute(
        text("""
            WITH t AS (UPDATE template SET version = version + 1 WHERE id = :id RETURNING id, version)
            INSERT INTO template_version (template_id, version, description, spec, author)
            SELECT t.id, t.version, :description, r.spec, :author
            FROM t, jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(spec jsonb)
        """),
        {"id": template_id, "description": description, "rows": recordset([{"spec": spec}]), "author": author},
    )


async def named(tx: AsyncSession, name: str, scope: Scope) -> Sequence[Row]:
    """Ids and projects of the templates with a name, those of projects first; at most one of each project."""
    found = await tx.execute(
        text(f"""
            SELECT t.id, t.project FROM template t WHERE t.name = :name AND t.delete_time IS NULL AND {scope.condition()}
            ORDER BY t.project NULLS LAST LIMIT 2
        """),  # noqa: S608  # the condition is ours, its values are parameters
        {"name": name, **scope.parameters()},
    )
    return fetched(found)


async def read(
    tx: AsyncSession, template_id: uuid.UUID, scope: Scope, *, version: int = 0, lock: bool = False
) -> Row | None:
    """A version of a template, 0 for the newest, deleted or not; None when there is none in the scope. With `lock`, held until the commit."""
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
    return rows[0] if rows else None


async def list_page(tx: AsyncSession, scope: Scope, *, after: tuple[str, str], limit: int, full: bool) -> Sequence[Row]:
    """Templates in their newest versions in the order of their names and projects; `after` is (name, project) of the one before, '' for none.

    Without `full` they have no `spec`; with it there are as many as the bytes of a page hold, and `found` is how many there were up to `limit`.
    """
    query = f"""
        SELECT {_columns(full=full)} FROM template t JOIN template_version v ON v.template_id = t.id AND v.version = t.version
        WHERE t.delete_time IS NULL AND {scope.condition()} AND (t.name, coalesce(t.project, '')) > (:name, :project)
        ORDER BY t.name, coalesce(t.project, '') LIMIT :limit
    """  # noqa: S608
    values = {"name": after[0], "project": after[1], "limit": limit, **scope.parameters()}
    return await _bounded(tx, query, "name, coalesce(project, '')", values)


async def list_versions(
    tx: AsyncSession, template_id: uuid.UUID, *, before: int, limit: int, full: bool
) -> Sequence[Row]:
    """Versions of a template, newest first, only those before a number unless that is 0; otherwise as `list_page`."""
    query = f"""
        SELECT {_columns(full=full)} FROM template t JOIN template_version v ON v.template_id = t.id
        WHERE t.id = :id AND (:before = 0 OR v.version < :before) ORDER BY v.version DESC LIMIT :limit
    """  # noqa: S608
    values = {"id": template_id, "before": before, "limit": limit}
    return await _bounded(tx, query, "version DESC", values)


def _columns(*, full: bool) -> str:
    return f"{_COLUMNS}, v.spec_bytes" if full else f"{_BASIC_COLUMNS}, 0 AS spec_bytes"


async def _bounded(tx: AsyncSession, query: str, order: str, values: Mapping[str, Any]) -> Sequence[Row]:
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
    return fetched(found)


async def delete(tx: AsyncSession, template_id: uuid.UUID) -> None:
    """Takes a template's name from it; its versions stay."""
    await tx.execute(text("UPDATE template SET delete_time = now() WHERE id = :id"), {"id": template_id})
