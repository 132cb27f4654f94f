"""What administrators do with servers of their own: promote a standby, dump and restore, with their own programs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.manager.store.backups.restore import begin_incarnation, violated_invariants
from retinue.manager.store.leadership import leadership
from retinue.manager.store.migrations import check, migrate, synchronous_engine
from retinue.manager.store.postgres import cluster
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.embedded import EmbeddedServer
from retinue.manager.store.postgres.examination import UnfitDatabaseError, examine
from retinue.manager.store.postgres.health import watch_database
from tests.support.databases import Postgres, passable_directory
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")


def run_as_server(url: str, program: str, *arguments: str) -> None:
    """Runs a program of the server's own version, as the server's user."""
    with psycopg.connect(url) as connection:
        (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        (binaries,) = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone() or ("",)
    owner = Path(data).stat()
    user: dict[str, Any] = (
        {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    subprocess.run([str(Path(binaries) / program), *arguments], check=True, cwd="/", **user)


@pytest_asyncio.fixture(loop_scope="session")
async def pair() -> AsyncIterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """A primary, and a standby of it."""
    with passable_directory() as one, passable_directory() as other:
        primary, standby = (EmbeddedServer(place / "postgres", durable=False) for place in (one, other))
        try:
            await primary.start()
            owner = primary.directory.stat()
            # The log belongs to who starts the server, and a copy has all files.
            for path in (other, primary.directory / "server.log"):
                os.chown(path, owner.st_uid, owner.st_gid)
            await asyncio.to_thread(
                run_as_server,
                primary.url,
                "pg_basebackup",
                *("-D", str(other / "postgres"), "-h", str(primary.directory), "-U", "postgres", "-R", "-c", "fast"),
            )
            # The socket of the embedded server is among its data, and so is what says that it is taken.
            (other / "postgres" / ".s.PGSQL.5432.lock").unlink()
            await standby.start()
            yield primary, standby
        finally:
            await standby.stop()
            await primary.stop()


async def test_a_promoted_standby_takes_over(pair: tuple[EmbeddedServer, EmbeddedServer]) -> None:
    primary, standby = pair
    hosts = ",".join(quote(str(server.directory), safe="") for server in pair)
    url = f"postgresql://postgres@{hosts}/retinue?target_session_attrs=read-write&connect_timeout=3"
    await migrate(url)
    with pytest.raises(UnfitDatabaseError, match="is a standby, which takes no changes: give the primary"):
        await examine(standby.url)
    database, terms, reasons = Database(url), asyncio.Queue[int](), [""]

    async def body(lease: leadership.Lease) -> None:
        terms.put_nowait(lease.term)
        await asyncio.Event().wait()

    async def report(reason: str, _answers: bool) -> None:
        reasons.append(reason)

    tasks = [
        asyncio.create_task(leadership.campaign(database, "a:1", body)),
        asyncio.create_task(watch_database(database, report)),
    ]
    try:
        async with asyncio.timeout(NEVER):
            first = await terms.get()
        before = await incarnation(database)
        await eventually(partial(has_replayed, primary, standby))
        await primary.stop()
        with pytest.raises(StoreUnavailable):
            await incarnation(database)

        async def is_reported() -> bool:
            return bool(reasons[-1])

        await eventually(is_reported)
        await execute(standby.url, "SELECT pg_promote()")
        async with asyncio.timeout(NEVER):
            assert await terms.get() > first
        assert await incarnation(database) == before

        async def is_ready() -> bool:
            return not reasons[-1]

        await eventually(is_ready)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await database.dispose()


async def incarnation(database: Database) -> uuid.UUID:
    async with database.transaction() as tx:
        return (await cluster.read(tx, lock=True)).incarnation


async def has_replayed(primary: EmbeddedServer, standby: EmbeddedServer) -> bool:
    """Whether the standby has all that was committed up to now; a leader renews its lease all the while."""
    (written,) = await execute(primary.url, "SELECT pg_current_wal_flush_lsn()")
    (has,) = await execute(standby.url, f"SELECT pg_last_wal_replay_lsn() >= '{written}'")
    return bool(has)


async def execute(url: str, statement: str) -> tuple[Any, ...]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        row = await (await connection.execute(statement.encode())).fetchone()
        return row or ()


async def test_a_dump_is_restored_by_the_servers_programs(postgres: Postgres, database_url: str) -> None:
    database = Database(database_url)
    before = await incarnation(database)
    async with database.transaction() as tx:
        await tx.execute(text("INSERT INTO project (name) VALUES ('kept')"))
    with passable_directory() as directory:
        directory.chmod(0o777)
        dump = directory / "dump"
        # The cluster is in use meanwhile.
        async with database.transaction() as tx:
            await tx.execute(text("INSERT INTO project (name) VALUES ('later')"))
            await asyncio.to_thread(
                run_as_server, database_url, "pg_dump", "--format", "custom", "--file", str(dump), database_url
            )
        await database.dispose()
        restoring = ("--clean", "--if-exists", "--no-owner", "--single-transaction", "--dbname")
        name = f"test_{uuid.uuid4().hex}"
        await postgres.execute(f"CREATE DATABASE {name}")
        try:
            # Into an empty database, and in place of what the former one holds now.
            for url in (postgres.url_of(name), database_url):
                await asyncio.to_thread(run_as_server, url, "pg_restore", *restoring, url, str(dump))
                await check(url)
                engine = synchronous_engine(url)
                begun = await asyncio.to_thread(begin_incarnation, engine)
                engine.dispose()
                assert begun != str(before)
                with psycopg.connect(url) as connection:
                    assert violated_invariants(connection) == []
                    projects = connection.execute("SELECT name FROM project WHERE name IN ('kept', 'later')")
                    assert projects.fetchall() == [("kept",)]
        finally:
            await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_role_that_owns_nothing_but_its_tables(postgres: Postgres) -> None:
    role, name = f"role_{uuid.uuid4().hex}", f"test_{uuid.uuid4().hex}"
    await postgres.execute(f"CREATE DATABASE {name}")
    await postgres.execute(f"CREATE ROLE {role} LOGIN")
    try:
        url = postgres.url_of(name)
        await execute_all(
            url,
            f"REVOKE ALL ON DATABASE {name} FROM PUBLIC",
            "REVOKE ALL ON SCHEMA public FROM PUBLIC",
            f"GRANT CONNECT ON DATABASE {name} TO {role}",
            f"GRANT USAGE, CREATE ON SCHEMA public TO {role}",
        )
        own = url.replace("://postgres@", f"://{role}@")
        await migrate(own)
        database, reported = Database(own), asyncio.Queue[str]()

        async def report(reason: str, _answers: bool) -> None:
            reported.put_nowait(reason)

        task = asyncio.create_task(watch_database(database, report))
        try:
            async with asyncio.timeout(NEVER):
                assert await reported.get() == ""
        finally:
            task.cancel()
            await asyncio.wait((task,))
            await database.dispose()
    finally:
        await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await postgres.execute(f"DROP ROLE {role}")


async def execute_all(url: str, *statements: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for statement in statements:
            await connection.execute(statement.encode())
