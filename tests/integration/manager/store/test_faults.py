"""What a real database refuses is said in its words, with what to do, once, and at the right level."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import text

from retinue.manager.server.lower_errors import to_api_error
from retinue.manager.store.migrations import migrate
from retinue.manager.store.postgres.database import Database, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.databases import Postgres

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def role() -> str:
    return f"role_{uuid.uuid4().hex}"


@contextlib.asynccontextmanager
async def database_of(postgres: Postgres, role: str) -> AsyncIterator[str]:
    """The URL of an empty database, for a role that may log in and owns nothing."""
    name = f"test_{uuid.uuid4().hex}"
    await postgres.execute(f"CREATE DATABASE {name}")
    await postgres.execute(f"CREATE ROLE {role} LOGIN")
    try:
        yield postgres.url_of(name).replace("://retinue@", f"://{role}@").replace("://postgres@", f"://{role}@")
    finally:
        await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await postgres.execute(f"DROP ROLE {role}")


async def execute(database: Database, *statements: str) -> None:
    async with database.transaction() as tx:
        for statement in statements:
            await tx.execute(text(statement))


async def refused(url: str) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as found:
        await migrate(url)
    return found.value


async def test_a_role_without_rights(postgres: Postgres, role: str) -> None:
    async with database_of(postgres, role) as url:
        await postgres.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        error = await refused(url)
    assert "permission denied for schema public" in str(error)
    assert "GRANT USAGE, CREATE ON SCHEMA public" in str(error)


async def test_a_database_that_nobody_made(postgres: Postgres) -> None:
    error = await refused(postgres.url_of("not_there"))
    assert 'database "not_there" does not exist' in str(error)
    assert "CREATE DATABASE" in str(error)


async def test_no_server(tmp_path: Path) -> None:
    assert "No such file or directory" in str(await refused(f"postgresql://x@/x?host={tmp_path}"))
    assert "Connection refused" in str(await refused("postgresql://x@127.0.0.1:1/x"))


async def test_no_connections_left(postgres: Postgres, role: str) -> None:
    async with database_of(postgres, role) as url:
        await postgres.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
        error = await refused(url)
    assert "too many connections for role" in str(error)
    assert "raise max_connections" in str(error)
    assert error.fault is not None
    assert not error.fault.passes


async def test_a_database_that_takes_no_changes(
    postgres: Postgres, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StoreUnavailable, match="target_session_attrs=read-write") as found:
        await execute(database, "SET TRANSACTION READ ONLY", "DELETE FROM session")
    answer = to_api_error(found.value)
    assert answer is not None
    assert "it takes no changes" in str(answer)
    (line,) = [record for record in caplog.records if "read-only transaction" in record.getMessage()]
    assert line.levelno == logging.ERROR


@pytest.fixture
def small_disk(postgres: Postgres) -> Iterator[Path]:
    """A directory of PostgreSQL's user on a file system of a few MiB."""
    place = Path(f"/run/rt-test-{uuid.uuid4().hex}")
    place.mkdir()
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=True)
    try:
        with psycopg.connect(postgres.url_of("postgres")) as connection:
            (directory,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        owner = Path(directory).stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        yield place
    finally:
        subprocess.run(["/usr/bin/umount", str(place)], check=True)
        place.rmdir()


async def test_a_full_disk(
    postgres: Postgres, database: Database, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = f"small_{uuid.uuid4().hex}"
    await postgres.execute(f"CREATE TABLESPACE {space} LOCATION '{small_disk}'")
    try:
        await execute(database, f"CREATE TABLE big (data text) TABLESPACE {space}")
        fill = "INSERT INTO big SELECT md5(random()::text) FROM generate_series(1, 200000)"
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="No space left on device: make space") as found:
                await execute(database, fill)
        await execute(database, "DROP TABLE big")
    finally:
        await postgres.execute(f"DROP TABLESPACE {space}")
    assert "its disk is full: an administrator has to act" in str(to_api_error(found.value))
    lines = [record for record in caplog.records if "No space left" in record.getMessage()]
    assert [line.levelno for line in lines] == [logging.ERROR], "once, as an error"
