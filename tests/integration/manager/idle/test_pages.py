"""Idle sessions are looked at in pages, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.manager.domain.session.states import SessionType
from retinue.manager.store.sessions import idle
from tests.integration.manager.rows import execute, submit

if TYPE_CHECKING:
    import uuid

    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_each_running_session_is_on_one_page(database: Database) -> None:
    made = sorted([await submit(database, owner) for owner in ("ada", "bob", "ada", "cyd", "ada")])
    await execute(database, "UPDATE session SET state = 'RUNNING', start_time = now()")
    pages: list[list[uuid.UUID]] = []
    async with database.transaction() as tx:
        while not pages or pages[-1]:
            rows = await idle.read_running(
                tx,
                [SessionType.BATCH],
                groups=["default"],
                owners=["ada"],
                after=pages[-1][-1] if pages else None,
                limit=2,
            )
            pages.append([row.id for row in rows])
            assert len(pages) <= len(made)
    assert pages == [made[:2], made[2:4], made[4:], []]
