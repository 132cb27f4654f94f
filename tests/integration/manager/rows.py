"""What tests put into the tables, and what the tables say of it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from retinue.manager.domain.session.admission import admit
from retinue.manager.domain.session.spec import KernelSpec, SessionSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.session.drafts import draft
from retinue.manager.session.submit import create_many
from retinue.manager.store.placement import quotas
from retinue.manager.store.sessions import sessions, updates

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


async def execute(database: Database, statement: str, **values: object) -> list[tuple[object, ...]]:
    async with database.transaction() as tx:
        result: Any = await tx.execute(text(statement), values)
        return [tuple(row) for row in result] if result.returns_rows else []


async def submit(database: Database, owner: str, name: str = "", cpu: str = "1", **changes: Any) -> uuid.UUID:
    """Makes a session that is admitted; one without a name gets its own."""
    session_id = uuid.uuid4()
    values: dict[str, Any] = {
        "name": name or f"s-{session_id.hex[:8]}",
        "project": "default",
        "resource_group": "default",
        "type": SessionType.BATCH,
        "kernel": KernelSpec(command=("x",), slots={"cpu": cpu}),
    }
    spec, violations = admit(SessionSpec(**{**values, **changes}))
    assert violations == []
    async with database.transaction() as tx:
        await create_many(tx, [draft(session_id, owner, spec)])
    return session_id


async def hold(database: Database, session_id: uuid.UUID, held: bool = True) -> None:
    """Holds a session, or releases it."""
    async with database.transaction() as tx:
        spec = (await sessions.read(tx, [session_id], lock=True))[session_id].spec
        assert isinstance(spec, SessionSpec)
        await updates.change(tx, session_id, replace(spec, hold=held))


async def limit(database: Database, kind: str, name: str, **limits: Any) -> None:
    """Sets a quota."""
    async with database.transaction() as tx:
        await quotas.put(tx, kind, name, quotas.Limits(**limits))


async def state_of(database: Database, session_id: uuid.UUID) -> str:
    rows = await execute(database, "SELECT state FROM session WHERE id = :id", id=session_id)
    return str(rows[0][0])


async def states(database: Database) -> dict[str, str]:
    return {str(name): str(state) for name, state in await execute(database, "SELECT name, state FROM session")}


async def waits(database: Database, name: str) -> tuple[str, str, str, int]:
    """Why a session waits: reason, message, tier, and tries."""
    rows = await execute(
        database, "SELECT reason, message, explanation->>'tier', tries FROM session WHERE name = :name", name=name
    )
    reason, message, tier, tries = rows[0]
    return str(reason), str(message), str(tier), int(str(tries))
