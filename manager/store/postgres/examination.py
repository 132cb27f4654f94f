"""Looks at a database server before it is used: whether it can serve a manager, and what will go wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import class_row

from retinue.manager.store.postgres.connections import CONNECT_SECONDS, open_connection, parse_url
from retinue.manager.store.postgres.database import StoreUnavailable, translate
from retinue.manager.store.postgres.dedicated import DedicatedConnection, execute_within
from retinue.manager.store.postgres.lanes import MAX_CONNECTIONS
from retinue.rpc import failpoints

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy.engine import URL

OLDEST_VERSION = 15
"""The oldest major version of PostgreSQL that is tested."""
CLOCK_SECONDS = 5.0
"""Clocks of manager and database may be so far apart."""
_NAME = "retinue examination"
_HELD_SECONDS = 5.0
_SETTINGS = {"statement_timeout": "10000"}

_BASICS = "SELECT current_setting('server_version_num')::int, current_setting('server_encoding')"
_FACTS = """
    SELECT
        current_database()::text AS database,
        current_user::text AS role,
        current_schema()::text AS schema,
        current_setting('search_path') AS search_path,
        coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) AS may_create,
        pg_is_in_recovery() AS is_standby,
        current_setting('transaction_read_only')::bool AS is_read_only,
        extract(epoch FROM clock_timestamp())::float8 AS clock,
        least(
            current_setting('max_connections')::int - CASE WHEN r.rolsuper THEN 0 ELSE
                current_setting('superuser_reserved_connections')::int
                + coalesce(current_setting('reserved_connections', true), '0')::int END,
            nullif(r.rolconnlimit, -1),
            nullif(d.datconnlimit, -1)
        ) AS connections,
        (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::int AS used,
        coalesce(d.datcollversion <> pg_database_collation_actual_version(d.oid), false) AS is_collation_stale
    FROM pg_database d JOIN pg_roles r ON r.rolname = session_user
    WHERE d.datname = current_database()
"""


class UnfitDatabaseError(Exception):
    """The database cannot serve a manager; the text says why, and what to do."""


class WrongEncodingError(UnfitDatabaseError):
    """The database does not keep text as UTF-8, so not every text of a request could be stored."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself and of the manager's role: amounts in connections, times in seconds."""

    database: str
    role: str
    schema: str | None
    """Where tables are made; None if search_path names none that exists."""
    search_path: str
    may_create: bool
    is_standby: bool
    is_read_only: bool
    clock: float
    """Since 1970."""
    connections: int
    """How many the role may have, if nobody else has any."""
    used: int
    """How many the server has, ours among them."""
    is_collation_stale: bool


@dataclass(frozen=True, slots=True)
class Examination:
    """A database that can serve."""

    version: str
    facts: ServerFacts
    warnings: tuple[str, ...]
    """What will go wrong, and what to do."""


@failpoints.awaited("database", StoreUnavailable)
async def examine(url: str) -> Examination:
    """Returns what there is to say of a database server. Changes nothing.

    Raises UnfitDatabaseError, WrongEncodingError, StoreUnavailable.
    """
    parsed = parse_url(url)
    try:
        async with _connection(parsed) as first:
            version = await _check_basics(first)
            before = time.time()
            async with first.cursor(row_factory=class_row(ServerFacts)) as cursor:
                await cursor.execute(_FACTS.encode())
                facts = await cursor.fetchone()
            if facts is None:
                raise UnfitDatabaseError("the database does not list itself in pg_database: it is no PostgreSQL")
            offset = facts.clock - (before + time.time()) / 2
            if refusal := refusal_of(facts):
                raise UnfitDatabaseError(refusal)
            async with _connection(parsed) as second:
                is_pooled = await _refuse_shared_sessions(first, second)
            warnings = [*_warnings(facts, offset), *([await _pooler_warning(parsed)] if is_pooled else [])]
            return Examination(version, facts, tuple(filter(None, warnings)))
    except (psycopg.Error, OSError) as error:
        raised = translate(error)
        if isinstance(raised, StoreUnavailable):
            raise raised from error
        raise


def refusal_of(facts: ServerFacts) -> str:
    """Returns why a server cannot serve a manager, and what to do; empty if it can."""
    role = facts.role
    if facts.is_standby:
        return (
            "the database server is a standby, which takes no changes: "
            "give the primary as host, or several hosts with target_session_attrs=read-write"
        )
    if facts.is_read_only:
        return (
            f"the database takes no changes: ALTER ROLE {role} SET default_transaction_read_only = off, "
            f"and the same for the database {facts.database}"
        )
    if facts.schema is None:
        return (
            f"the database has no schema of search_path ({facts.search_path}) that the role {role} may use: "
            f"CREATE SCHEMA name AUTHORIZATION {role}, or GRANT USAGE, CREATE ON SCHEMA name TO {role}"
        )
    return ""


async def _check_basics(connection: DedicatedConnection) -> str:
    ((number, encoding),) = await execute_within(connection, CONNECT_SECONDS, _BASICS)
    major, minor = divmod(int(number), 10_000)
    if major < OLDEST_VERSION:
        raise UnfitDatabaseError(
            f"the database server is PostgreSQL {major}, and the oldest that can serve is {OLDEST_VERSION}: "
            "upgrade it with pg_upgrade, or give another one"
        )
    if encoding != "UTF8":
        raise WrongEncodingError(
            f"the database's encoding is {encoding}; it has to be UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )
    return f"{major}.{minor}"


@failpoints.awaited("database", psycopg.OperationalError)
async def _refuse_shared_sessions(first: DedicatedConnection, second: DedicatedConnection) -> bool:
    """Returns whether there is a pooler that gives each connection a session of its own.
    Raises UnfitDatabaseError for one that shares sessions.

    A connection that holds a transaction holds its session: it would be the one that the other had just before.
    """
    why = (
        "a pooler shares sessions of the database between connections, and locks, settings and LISTEN belong to "
        "a session: set pool_mode = session for this database in the pooler, or connect to the server itself"
    )
    asked = [await _server_process(first) for _ in range(3)]
    try:
        await second.execute("BEGIN")
        held = await _server_process(second)
        asked.append(await _server_process(first))
        await second.execute("ROLLBACK")
    except psycopg.errors.ProtocolViolation as error:
        # Of a pooler that shares sessions between statements.
        raise UnfitDatabaseError(f"{why} ({error})") from error
    except StoreUnavailable as error:
        # The pooler has the one session only, which the other connection holds now.
        raise UnfitDatabaseError(why) from error
    if len(set(asked)) > 1 or held in asked:
        raise UnfitDatabaseError(why)
    return asked[0] != first.info.backend_pid


async def _server_process(connection: DedicatedConnection) -> int:
    ((pid,),) = await execute_within(connection, _HELD_SECONDS, "SELECT pg_backend_pid()")
    return int(pid)


def _warnings(facts: ServerFacts, offset: float) -> list[str]:
    found = []
    # Two are ours.
    free = min(facts.connections, facts.connections - facts.used + 2)
    if free < MAX_CONNECTIONS:
        found.append(
            f"the database has {max(free, 0)} connections left for the role {facts.role}, and a manager takes up to "
            f"{MAX_CONNECTIONS}: raise max_connections, or the CONNECTION LIMIT of the role or of the database"
        )
    if abs(offset) > CLOCK_SECONDS:
        found.append(
            f"the clocks of the database and of this machine are {abs(offset):.0f} s apart, by which tokens expire "
            "too early or too late: synchronise them"
        )
    if facts.is_collation_stale:
        found.append(
            "the operating system of the database sorts text in another way than when it was made, so indexes may "
            f"miss rows: REINDEX DATABASE {facts.database}; "
            f"ALTER DATABASE {facts.database} REFRESH COLLATION VERSION"
        )
    return found


async def _pooler_warning(url: URL) -> str:
    """Returns what to do when a pooler has fewer sessions than a manager takes; empty if it has enough."""
    # The caller has one.
    count = 1
    async with contextlib.AsyncExitStack() as stack:
        with contextlib.suppress(psycopg.Error, OSError):
            while count < MAX_CONNECTIONS:
                async with asyncio.timeout(_HELD_SECONDS):
                    await stack.enter_async_context(_connection(url))
                count += 1
            return ""
    return (
        f"the pooler of the database gives {count} connections beside others, and a manager takes up to "
        f"{MAX_CONNECTIONS}: raise default_pool_size, max_client_conn or max_db_connections in the pooler"
    )


@contextlib.asynccontextmanager
async def _connection(url: URL) -> AsyncIterator[DedicatedConnection]:
    connection = await open_connection(url, _NAME, _SETTINGS)
    try:
        yield connection
    finally:
        await connection.close()
