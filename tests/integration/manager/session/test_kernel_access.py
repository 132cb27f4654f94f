"""Accesses that come by the hundred are kept once in a while, others each time."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from sqlalchemy import text

from retinue.manager.domain.session.events import AccessMethod, KernelAccess
from retinue.manager.session.access_log import AGAIN_SECONDS, record
from tests.integration.manager.rows import submit

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

TOKEN, OTHER_TOKEN = uuid.UUID(int=1), uuid.UUID(int=2)


async def kept(database: Database) -> int:
    async with database.transaction() as tx:
        return int((await tx.execute(text("SELECT count(*) FROM journal WHERE kind = 'KERNEL_ACCESSED'"))).scalar_one())


async def test_what_is_kept_again(database: Database) -> None:
    session, other = [await submit(database, "ada", name) for name in ("one", "other")]
    first = KernelAccess(AccessMethod.PORT, "main1", "ada", TOKEN, port=7001)

    async def enter(access: KernelAccess, session_id: uuid.UUID = session) -> int:
        async with database.transaction() as tx:
            await record(tx, session_id, access)
        return await kept(database)

    assert [await enter(first) for _ in range(3)] == [1, 1, 1]
    # Another session, port, user or token is something else.
    assert await enter(first, other) == 2
    assert await enter(KernelAccess(AccessMethod.PORT, "main1", "ada", TOKEN, port=7002)) == 3
    assert await enter(KernelAccess(AccessMethod.PORT, "main1", "eve", TOKEN, port=7001)) == 4
    assert await enter(KernelAccess(AccessMethod.PORT, "main1", "ada", OTHER_TOKEN, port=7001)) == 5
    assert [await enter(KernelAccess(AccessMethod.ATTACH, "main1", "ada", TOKEN)) for _ in range(2)] == [6, 7]
    age = text("UPDATE journal SET create_time = create_time - make_interval(secs => :age)")
    for seconds, expected in ((AGAIN_SECONDS - 60, 7), (60, 8)):
        async with database.transaction() as tx:
            await tx.execute(age, {"age": seconds})
        assert await enter(first) == expected
