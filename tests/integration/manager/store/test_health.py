"""A manager whose database takes no changes is not ready, says why, and is ready again once it does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from prometheus_client import REGISTRY
from sqlalchemy import text

from retinue.manager.store.postgres import database as module
from retinue.manager.store.postgres import health
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from retinue.manager.store.postgres.writes import Snapshot
    from tests.support.databases import Postgres

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Watch:
    """What was reported last."""

    def __init__(self) -> None:
        self.reason: str | None = None

    async def report(self, reason: str, _answers: bool) -> None:
        self.reason = reason

    async def until(self, part: str) -> None:
        """Until a reason with these words is reported; without words, until there is none."""

        async def has_come() -> bool:
            return self.reason is not None and (part in self.reason if part else not self.reason)

        await eventually(has_come)
        assert REGISTRY.get_sample_value("retinue_manager_database_writable") == (0 if part else 1)


@contextlib.asynccontextmanager
async def watched(url: str) -> AsyncIterator[tuple[Database, Watch]]:
    database, watch = Database(url), Watch()
    task = asyncio.create_task(health.watch_database(database, watch.report))
    try:
        await watch.until("")
        yield database, watch
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await database.dispose()


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


async def test_a_database_that_takes_no_changes(postgres: Postgres, database_url: str) -> None:
    async with watched(database_url) as (database, watch):
        name = name_of(database_url)
        await postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        # Settings count for connections that begin.
        await end_connections(postgres, name)
        await watch.until("it takes no changes: give the primary as host")
        await postgres.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await end_connections(postgres, name)
        await watch.until("")
        assert database.refusal is None


async def test_who_writes_is_noticed(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(health, "_SPACE_EVERY", 1)
    other = Database(database_url)
    looks = 0

    async def two_looks(statement: str) -> int:
        """How often writes were noticed in two whole looks, of which one begins after the statement."""
        before, until = database.writes.number, looks + 3
        async with other.transaction() as tx:
            await tx.execute(text(statement))

        async def passed() -> bool:
            return looks >= until

        await eventually(passed)
        return database.writes.number - before

    async with watched(database_url) as (database, _):
        look = database.writes.look

        def counted(now: Snapshot, own: int) -> None:
            nonlocal looks
            look(now, own)
            looks += 1

        monkeypatch.setattr(database.writes, "look", counted)
        # The server itself writes at times, as it analyses tables: it does not go on.
        quiet = (0).__eq__
        # What takes space is nobody's business, and reading leaves nothing to notice.
        await eventually(lambda: two_looks("SELECT count(*) FROM session"), quiet)
        # By itself: two that write at a time count, whatever they are.
        monkeypatch.setattr(health, "_SPACE_EVERY", 1_000_000)
        await eventually(lambda: two_looks("UPDATE leadership_lease SET renewal = renewal + 1"), quiet)
        assert await two_looks("UPDATE leadership SET holder = 'another'") > 0
        assert await two_looks("SELECT 1 FROM leadership FOR SHARE") > 0
    await other.dispose()


async def test_no_connections_left(postgres: Postgres, database_url: str) -> None:
    role, name = f"role_{uuid.uuid4().hex}", name_of(database_url)
    await postgres.execute(f"CREATE ROLE {role} LOGIN IN ROLE pg_write_all_data, pg_read_all_data")
    try:
        async with watched(database_url.replace("://postgres@", f"://{role}@")) as (_, watch):
            await postgres.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
            await end_connections(postgres, name)
            await watch.until("it has no connections left: raise max_connections")
            await postgres.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
            await watch.until("")
    finally:
        await postgres.execute(f"DROP ROLE {role}")


async def test_what_transactions_are_refused_counts(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(database_url) as (database, watch):
        with pytest.raises(StoreUnavailable):
            await change_nothing(database)
        assert database.refusal is not None
        await watch.until("it takes no changes")
        monkeypatch.setattr(module, "REFUSAL_SECONDS", 0.0)
        await watch.until("")


async def change_nothing(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.execute(text("SET TRANSACTION READ ONLY"))
        await tx.execute(text("DELETE FROM session"))


@pytest.fixture
def small_disk(postgres: Postgres) -> Iterator[Path]:
    """A directory of PostgreSQL's user on a file system of 32 MiB."""
    place = Path(f"/run/rt-test-{uuid.uuid4().hex}")
    place.mkdir()
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(place)], check=True)
    try:
        with psycopg.connect(postgres.url_of("postgres")) as connection:
            (directory,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        owner = Path(directory).stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        yield place
    finally:
        subprocess.run(["/usr/bin/umount", str(place)], check=True)
        place.rmdir()


async def test_a_full_disk_that_no_call_has_met(
    postgres: Postgres, database_url: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_SPACE_EVERY", 1)
    space, name = f"small_{uuid.uuid4().hex}", name_of(database_url)
    await postgres.execute(f"CREATE TABLESPACE {space} LOCATION '{small_disk}'")
    try:
        await postgres.execute(f"ALTER DATABASE {name} SET TABLESPACE {space}")
        async with watched(database_url) as (database, watch):
            filler = small_disk / "filler"
            await asyncio.to_thread(fill, filler)
            await watch.until("its disk is full: make space on the disk of the database")
            filler.unlink()
            await watch.until("")
            assert database.refusal is None
        await postgres.execute(f"ALTER DATABASE {name} SET TABLESPACE pg_default")
    finally:
        await postgres.execute(f"DROP TABLESPACE {space}")


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as opened, contextlib.suppress(OSError):
        while True:
            opened.write(bytes(4096))


async def end_connections(postgres: Postgres, name: str) -> None:
    await postgres.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
    )
