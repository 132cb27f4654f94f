"""Each row of the table in docs/how-to/database.md: what a real server, or what stands in its place, says."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.manager.identity.authority import Authority
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.embedded import EmbeddedServer
from retinue.manager.store.postgres.examination import UnfitDatabaseError, examine
from tests.support.databases import Postgres, passable_directory
from tests.support.pgbouncer import pooler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from retinue.manager.store.postgres.faults import Fault

pytestmark = pytest.mark.asyncio(loop_scope="session")

HBA = """
local all all trust
host all hashed all md5
host all open all trust
host all rejected all reject
host all secret all scram-sha-256
"""
ROLES = """
CREATE ROLE rejected LOGIN; CREATE ROLE open LOGIN; CREATE ROLE barred LOGIN;
CREATE ROLE sleeper NOLOGIN; CREATE ROLE secret LOGIN PASSWORD 'right'; CREATE ROLE limited LOGIN CONNECTION LIMIT 0
"""


@dataclass(frozen=True)
class Place:
    """A server of its own, with a port for TCP and passwords."""

    server: EmbeddedServer
    address: str
    directory: Path

    def url(self, query: str = "", *, user: str = "open", database: str = "postgres", host: str = "") -> str:
        return f"postgresql://{user}@{host or self.address}/{database}?{query}"

    def socket(self, query: str = "", *, user: str = "postgres", database: str = "postgres") -> str:
        return f"postgresql://{user}@/{database}?host={quote(str(self.server.directory), safe='')}&{query}"

    async def execute(self, *statements: str) -> None:
        connection = await psycopg.AsyncConnection.connect(self.socket(), autocommit=True)
        try:
            for statement in statements:
                await connection.execute(statement.encode())
        finally:
            await connection.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place() -> AsyncIterator[Place]:
    with passable_directory() as directory:
        (directory / "hba").write_text(HBA)
        data = directory / "postgres"
        address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        settings = {
            "listen_addresses": address,
            "hba_file": str(directory / "hba"),
        }
        server = EmbeddedServer(data, durable=False, settings=settings)
        try:
            await server.start()
            made = Place(server, address, directory)
            await made.execute(*filter(str.strip, ROLES.split(";")), "CREATE DATABASE closed ALLOW_CONNECTIONS false")
            await made.execute(
                "CREATE DATABASE private",
                "REVOKE CONNECT ON DATABASE private FROM PUBLIC",
                "SET password_encryption = 'md5'",
                "CREATE ROLE hashed LOGIN PASSWORD 'right'",
            )
            yield made
        finally:
            await server.stop()


async def fault_at(url: str) -> tuple[Fault, str]:
    """What a start meets at a URL, and what it says."""
    with pytest.raises(StoreUnavailable) as found:
        await examine(url)
    assert found.value.fault is not None
    return found.value.fault, str(found.value)


@pytest.mark.parametrize(
    ("user", "query", "words", "advice"),
    [
        ("secret:wrong", "", "password authentication failed", "check user and password"),
        ("hashed:wrong", "", "password authentication failed", "check user and password"),
        ("secret", "passfile=/nowhere", "no password supplied", "check user and password"),
        ("secret:right", "require_auth=md5", "authentication method requirement", "pg_hba.conf"),
        ("stranger", "", "no pg_hba.conf entry", "pg_hba.conf"),
        ("rejected", "", "pg_hba.conf rejects", "pg_hba.conf"),
        ("open", "sslmode=sometimes", "invalid sslmode value", "correct the database URL"),
    ],
)
async def test_who_is_not_let_in(place: Place, user: str, query: str, words: str, advice: str) -> None:
    fault, said = await fault_at(place.url(query, user=user))
    assert words in said
    assert advice in said
    assert not fault.passes


async def test_good_passwords_are_let_in(place: Place) -> None:
    for user in ("open", "secret:right", "hashed:right"):
        assert (await examine(place.url(user=user))).version.startswith("18.")


@pytest.fixture(scope="module")
def certificates(postgres: Postgres) -> Iterator[Path]:
    """Of a server at 127.0.0.1, of another authority, and one that has ended; within reach of the server's user."""
    with psycopg.connect(postgres.url_of("postgres")) as connection:
        (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    now = dt.datetime.now(dt.UTC)
    with passable_directory() as directory:
        for name, time in (("ca", now), ("other", now), ("old", now - dt.timedelta(days=1000))):
            (directory / name).mkdir()
            authority = Authority.load(directory / name, partial(_same, time))
            issued = authority.issue_server(["127.0.0.1"])
            (directory / f"{name}.crt").write_bytes(issued.certificate)
            (directory / f"{name}.pem").write_bytes(authority.certificate)
            key = directory / f"{name}.key"
            key.write_bytes(issued.key)
            key.chmod(0o600)
            os.chown(key, Path(data).stat().st_uid, -1)
        yield directory


def _same(time: dt.datetime) -> dt.datetime:
    return time


@contextlib.contextmanager
def speaking_tls(postgres: Postgres, certificates: Path, name: str) -> Iterator[str]:
    """The embedded server is built without TLS; a pooler has it, and libpq sees no difference."""
    files = {"client_tls_cert_file": certificates / f"{name}.crt", "client_tls_key_file": certificates / f"{name}.key"}
    with pooler(postgres, "session", client_tls_sslmode="allow", **files) as url:
        yield url


@pytest.mark.parametrize(
    ("name", "query", "words", "advice"),
    [
        ("ca", "sslmode=verify-full&sslrootcert=/nowhere", "root certificate file", "sslrootcert=FILE"),
        ("ca", "sslmode=verify-full&sslrootcert={}/other.pem", "verify failed", "give the CA of the server"),
        ("ca", "sslmode=verify-full&sslrootcert={}/ca.pem&host=db.test&hostaddr=127.0.0.1", "", "in the certificate"),
        ("ca", "sslmode=require&sslcert=/dev/null&sslkey=/nowhere", "could not", "sslcert and sslkey"),
        ("old", "sslmode=verify-full&sslrootcert={}/old.pem", "verify failed", "give the CA of the server"),
        ("ca", "sslmode=verify-full&sslrootcert={}/ca.pem", "", ""),
    ],
)
async def test_certificates(
    postgres: Postgres, certificates: Path, name: str, query: str, words: str, advice: str
) -> None:
    with speaking_tls(postgres, certificates, name) as url:
        asked = f"{url}/postgres?{query.format(certificates)}"
        if not advice:
            assert (await examine(asked)).warnings == ()
            return
        fault, said = await fault_at(asked)
    assert words in said
    assert advice in said
    assert not fault.passes


@pytest.mark.parametrize(
    ("user", "database", "words", "advice"),
    [
        ("nobody_there", "postgres", 'role "nobody_there" does not exist', "check user"),
        ("sleeper", "postgres", "is not permitted to log in", "check user"),
        ("limited", "postgres", "too many connections for role", "raise max_connections"),
        ("postgres", "nothing", 'database "nothing" does not exist', "CREATE DATABASE name ENCODING"),
        ("postgres", "closed", "not currently accepting connections", "ALLOW_CONNECTIONS true"),
        ("barred", "private", "permission denied for database", "GRANT CONNECT ON DATABASE"),
    ],
)
async def test_roles_and_databases(place: Place, user: str, database: str, words: str, advice: str) -> None:
    fault, said = await fault_at(place.socket(user=user, database=database))
    assert words in said
    assert advice in said
    assert not fault.passes


async def test_what_is_no_server(place: Place, postgres: Postgres, tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    try:
        for mode in ("disable", "require"):
            fault, said = await fault_at(f"postgresql://x@127.0.0.1:{port}/x?sslmode={mode}")
            assert "check host and port in the database URL" in said
            assert not fault.passes
    finally:
        other.close()
        await other.wait_closed()
    with pooler(postgres, "session") as url:
        fault, said = await fault_at(f"{url}/postgres?sslmode=require")
    assert "server does not support SSL" in said
    assert "set ssl = on" in said
    assert not fault.passes
    for url, words in (
        ("postgresql://x@127.0.0.1:1/x", "Connection refused"),
        (f"postgresql://x@/x?host={tmp_path}", "No such file or directory"),
    ):
        fault, said = await fault_at(url)
        assert words in said
        assert "start it, or check host and port" in said
        assert fault.passes
    fault, said = await fault_at("postgresql://x@db.invalid/x")
    assert "check the host in the database URL, and the name service" in said
    assert fault.passes


@pytest.mark.parametrize(
    ("statements", "state", "advice", "passes"),
    [
        (
            [
                "SET LOCAL temp_file_limit = '64kB'",
                "SET LOCAL work_mem = '64kB'",
                "SELECT * FROM generate_series(1, 1000000) g ORDER BY -g",
            ],
            "53400",
            "temp_file_limit",
            False,
        ),
        (
            ["SELECT pg_advisory_xact_lock(g) FROM generate_series(1, 1000000) g"],
            "53200",
            "max_locks_per_transaction",
            False,
        ),
        (["SET LOCAL statement_timeout = '10ms'", "SELECT pg_sleep(3600)"], "57014", "look for locks", True),
        (["SELECT * FROM not_there"], "42P01", "search_path", False),
        (["EXECUTE not_there"], "26000", "pool_mode = session", False),
        (["SET TRANSACTION READ ONLY", "CREATE TABLE x ()"], "25006", "target_session_attrs=read-write", False),
        (["SET ROLE open", "CREATE TABLE x ()"], "42501", "GRANT USAGE, CREATE ON SCHEMA public", False),
        (["SELECT pg_terminate_backend(pg_backend_pid())"], "57P01", "wait, or start it", True),
    ],
)
async def test_what_statements_are_refused(
    place: Place, statements: list[str], state: str, advice: str, passes: bool
) -> None:
    database = Database(place.socket())
    try:
        with pytest.raises(StoreUnavailable) as found:
            await execute(database, statements)
    finally:
        await database.dispose()
    fault = found.value.fault
    assert fault is not None
    assert (fault.state, fault.passes) == (state, passes)
    assert advice in str(found.value)


async def execute(database: Database, statements: list[str]) -> None:
    async with database.transaction() as tx:
        for statement in statements:
            await tx.execute(text(statement))


async def test_damaged_files(place: Place) -> None:
    await place.execute(
        *(
            f"CREATE TABLE {name} AS SELECT g AS id FROM generate_series(1, 1000) g"  # noqa: S608  # names of ours
            for name in ("torn", "lost", "sorted")
        ),
        "CREATE INDEX damaged ON sorted (id)",
    )
    files = {}
    connection = await psycopg.AsyncConnection.connect(place.socket(), autocommit=True)
    for name in ("torn", "lost", "damaged"):
        row = await (await connection.execute(f"SELECT pg_relation_filepath('{name}')".encode())).fetchone()
        assert row is not None
        files[name] = place.server.directory / row[0]
    await connection.close()
    await place.server.stop()
    files["torn"].write_bytes(bytes([255]) * 8192)
    files["lost"].unlink()
    files["damaged"].write_bytes(bytes(files["damaged"].stat().st_size))
    await place.server.start()
    database = Database(place.socket())
    try:
        for statements, state, advice in (
            (["SELECT count(*) FROM torn"], "XX001", "restore a backup"),
            (["SELECT count(*) FROM lost"], "58P01", "look at the disk"),
            (["SET LOCAL enable_seqscan = off", "SELECT * FROM sorted WHERE id = 7"], "XX002", "REINDEX"),
        ):
            with pytest.raises(StoreUnavailable) as found:
                await execute(database, statements)
            assert found.value.fault is not None
            assert found.value.fault.state == state
            assert advice in str(found.value)
            assert not found.value.fault.passes
    finally:
        await database.dispose()
        await place.execute("DROP TABLE torn, lost, sorted")


async def test_servers_that_are_too_old_or_keep_text_otherwise(place: Place) -> None:
    await place.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    await place.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    for name in ("plain", "latin"):
        with pytest.raises(UnfitDatabaseError, match="it has to be UTF8: CREATE DATABASE"):
            await examine(place.socket(database=name))
    await place.execute(
        "CREATE SCHEMA past",
        "CREATE FUNCTION past.current_setting(text) RETURNS text LANGUAGE sql AS "
        "$$ SELECT CASE $1 WHEN 'server_version_num' THEN '140009' ELSE pg_catalog.current_setting($1) END $$",
    )
    path = quote("-csearch_path=past,pg_catalog,public")
    with pytest.raises(UnfitDatabaseError, match="is PostgreSQL 14, and the oldest that can serve is 15"):
        await examine(place.socket(f"options={path}"))


async def test_a_role_and_a_database_that_only_read(place: Place) -> None:
    with pytest.raises(UnfitDatabaseError, match="ALTER ROLE postgres SET default_transaction_read_only = off"):
        await examine(place.socket("options=-cdefault_transaction_read_only%3Don"))


async def test_few_connections_are_warned_of(place: Place) -> None:
    await place.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 20")
    (warning,) = (await examine(place.socket(user="few"))).warnings
    assert "connections left for the role few, and a manager takes up to 29: raise max_connections" in warning
