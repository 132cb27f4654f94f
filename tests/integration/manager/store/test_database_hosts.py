"""A database of several hosts, of which not every one is there."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from sqlalchemy import text

from retinue.manager.store.migrations import is_empty
from retinue.manager.store.postgres.connections import parse_url
from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    "form",
    [
        "postgresql://{user}@%2Fnowhere,{quoted}/{database}?target_session_attrs=read-write&options=-cgeqo%3Doff",
        "host=/nowhere,{host} user={user} dbname={database} target_session_attrs=read-write options=-cgeqo=off",
    ],
)
async def test_the_host_that_can_be_written_to_is_found(database_url: str, form: str) -> None:
    url = parse_url(database_url)
    host = str(url.query["host"])
    several = form.format(user=url.username, host=host, quoted=quote(host, safe=""), database=url.database)
    database = Database(several)
    try:
        async with database.transaction() as tx:
            rows = await tx.execute(
                text("SELECT current_setting('geqo'), current_setting('jit'), current_setting('timezone')")
            )
            # Options of the URL count, beside our own.
            assert tuple(rows.one()) == ("off", "off", "UTC")
    finally:
        await database.dispose()
    assert await is_empty(several) is await is_empty(database_url)
