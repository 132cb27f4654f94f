"""A pooler that gives sessions serves a manager; one that shares them is refused before anything is done."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.manager.store.journal.journal_tail import JournalTail
from retinue.manager.store.leadership import leadership
from retinue.manager.store.migrations import migrate
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.examination import UnfitDatabaseError, examine
from retinue.manager.store.postgres.lanes import MAX_CONNECTIONS
from tests.support.databases import Postgres, fresh_database
from tests.support.eventually import NEVER
from tests.support.pgbouncer import pooler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def session_pooler(postgres: Postgres) -> Iterator[str]:
    with pooler(postgres, "session") as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def name(postgres: Postgres) -> AsyncIterator[str]:
    """Of a database with the schema in it."""
    async with fresh_database(postgres) as url:
        yield url.partition("?")[0].rpartition("/")[2]


async def test_sessions_of_a_pooler_lead_are_fenced_and_hear_of_changes(session_pooler: str, name: str) -> None:
    url = f"{session_pooler}/{name}"
    await migrate(url)
    one, other = Database(url), Database(url)
    heard, led = asyncio.Event(), asyncio.Queue[int]()

    async def body(lease: leadership.Lease) -> None:
        led.put_nowait(lease.term)
        await asyncio.Event().wait()

    listening, telling = JournalTail(one, poll_seconds=NEVER), JournalTail(other, poll_seconds=NEVER)
    listening.on_wake(heard.set)
    tasks = [asyncio.create_task(work) for work in (listening.run(), telling.run())]
    leaders = [asyncio.create_task(leadership.campaign(one, "a:1", body))]
    try:
        async with asyncio.timeout(NEVER):
            first = await led.get()
            async with one.transaction() as tx:
                settings = text("SELECT current_setting('jit'), current_setting('statement_timeout')")
                assert tuple((await tx.execute(settings)).one()) == ("off", "20s")
            while not heard.is_set():
                telling.wake()
                await asyncio.sleep(0.1)
            # The pooler gives the server's connection to others, who get nothing of the lock that it held.
            leaders.append(asyncio.create_task(leadership.campaign(other, "b:2", body)))
            leaders[0].cancel()
            assert await led.get() == first + 1
    finally:
        for task in [*tasks, *leaders]:
            task.cancel()
        await asyncio.wait([*tasks, *leaders])
        await one.dispose()
        await other.dispose()


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("transaction", {}),
        ("transaction", {"default_pool_size": 1}),
        ("transaction", {"server_round_robin": 1, "min_pool_size": 3}),
        ("statement", {}),
    ],
)
async def test_shared_sessions_are_refused(postgres: Postgres, name: str, mode: str, settings: dict[str, int]) -> None:
    with pooler(postgres, mode, **settings) as url:
        for _ in range(2):
            with pytest.raises(UnfitDatabaseError, match="set pool_mode = session"):
                await migrate(f"{url}/{name}")


async def test_a_pooler_with_too_few_connections_is_warned_of(
    postgres: Postgres, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pooler(postgres, "session", default_pool_size=5) as url:
        await migrate(f"{url}/{name}")
    (line,) = [record for record in caplog.records if "the pooler of" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert "gives 5 connections beside others" in line.getMessage()
    assert f"up to {MAX_CONNECTIONS}: raise default_pool_size" in line.getMessage()


async def test_a_pooler_with_enough_connections_is_not(session_pooler: str, name: str) -> None:
    assert (await examine(f"{session_pooler}/{name}")).warnings == ()


@pytest.mark.parametrize(
    ("settings", "query", "said", "advice"),
    [
        ({}, "?options=-cgeqo%3Doff", "unsupported startup parameter", "ALTER ROLE name SET"),
        ({"max_client_conn": 0}, "", "no more connections allowed", "max_client_conn"),
        ({"query_wait_timeout": 1, "default_pool_size": 1}, "", "", "raise default_pool_size"),
    ],
)
async def test_what_a_pooler_refuses(
    postgres: Postgres, name: str, settings: dict[str, int], query: str, said: str, advice: str
) -> None:
    with pooler(postgres, "session", **settings) as url, pytest.raises(StoreUnavailable) as found:
        await migrate(f"{url}/{name}{query}")
    assert said in str(found.value)
    assert advice in str(found.value)
    assert found.value.fault is not None
    assert not found.value.fault.passes
