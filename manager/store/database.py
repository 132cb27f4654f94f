"""The way to PostgreSQL: pooled transactions for data, and dedicated connections for locks and wake-ups."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import psycopg
import sqlalchemy.exc
from psycopg.rows import dict_row
from sqlalchemy import Executable, Result, event, text
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.ext.asyncio import AsyncSession as SqlAlchemySession
from sqlmodel.ext.asyncio.session import AsyncSession

from manager.store import arrays

_DRIVER = "postgresql+psycopg"
_CONNECT_SECONDS = 5
# A connection whose peer is gone without a word is given up after about this time.
_LIVENESS: Mapping[str, Any] = {
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# What says nothing about the statement: connection, resources, operator, system; a standby after a failover.
_PASSING_CLASSES = ("08", "53", "57", "58")
_PASSING_CODES = ("25006",)
# Serialization failure, deadlock, lock not available: the same transaction may pass when it is tried again.
_CONFLICTS = ("40001", "40P01", "55P03")

_DIALECT = PGDialectAsync_psycopg()  # type: ignore[no-untyped-call]

# Where a transaction keeps the events it has appended to the journal.
APPENDED = "appended"


def _options(**settings: Any) -> str:
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


class StoreUnavailable(Exception):  # noqa: N818  # a condition of the store that passes, not a mistake
    """The database could not be reached or could not finish: the transaction may be tried again.

    When it was raised by the commit itself, the effect may be there or not.
    """


class StoreConflict(StoreUnavailable):
    """The transaction lost against another one and left nothing behind: it may be tried again at once."""


def parse_url(url: str) -> URL:
    """A URL of libpq or SQLAlchemy as SQLAlchemy takes it. Raises ValueError when it is not one of PostgreSQL."""
    try:
        parsed = make_url(url)
    except sqlalchemy.exc.ArgumentError:
        raise ValueError("the database URL cannot be parsed") from None
    if parsed.drivername not in ("postgres", "postgresql", _DRIVER):
        raise ValueError(f"the database URL must begin with postgresql://, not {parsed.drivername}://")
    return parsed.set(drivername=_DRIVER)


class Statement(NamedTuple):
    """SQL with parameters named as in `:name`, to be executed together with others."""

    sql: str
    params: Mapping[str, Any] = {}


class Transaction(AsyncSession):
    """A session of SQLModel that also takes SQL as text.

    SQLModel's `execute` does the same and warns against itself, in favour of `exec`, which takes no text.
    """

    async def together(self, *statements: Statement, commit: bool = False) -> list[list[dict[str, Any]]]:
        """Executes statements of which none needs to know what another one found, in order; returns the rows of each, by column.

        All of them take one round trip, and with `commit` that is also the transaction's end: on the way of a session to its agent, round trips
        are most of what there is. Raises the driver's own errors.
        """
        driver: psycopg.AsyncConnection[Any]
        driver = (await (await self.connection()).get_raw_connection()).driver_connection  # type: ignore[assignment]
        async with driver.pipeline():
            cursors = [
                await driver.cursor(row_factory=dict_row).execute(_of_driver(statement.sql), statement.params)
                for statement in statements
            ]
            if commit:
                await driver.commit()
        return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]

    async def execute(self, statement: Executable, params: Any = None, **options: Any) -> Result[*tuple[Any, ...]]:
        """Executes any statement; `params` is one mapping, or a sequence of them."""
        return await SqlAlchemySession.execute(self, statement, params, **options)


class Database:
    """One database, through a bounded pool of connections. Transactions are READ COMMITTED."""

    def __init__(self, url: str, *, pool_size: int = 16, statement_timeout: float = 20.0) -> None:
        """`pool_size` connections at most; a statement ends after `statement_timeout` seconds."""
        self._url = parse_url(url)
        self._listeners: list[Callable[[Sequence[Any]], None]] = []
        milliseconds = int(statement_timeout * 1000)
        self._engine: AsyncEngine = create_async_engine(
            self._url,
            pool_size=pool_size,
            max_overflow=0,
            # The connection that was used last: its server process has the statements prepared, and its memory is warm.
            pool_use_lifo=True,
            pool_timeout=_CONNECT_SECONDS,
            json_deserializer=orjson.loads,
            connect_args={
                **_LIVENESS,
                "application_name": "retinue-manager",
                "options": _options(
                    statement_timeout=milliseconds,
                    idle_in_transaction_session_timeout=3 * milliseconds,
                    timezone="UTC",
                    # Statements over lists are few and look dear: making machine code of one takes longer than it.
                    jit="off",
                ),
            },
        )
        event.listen(self._engine.sync_engine, "connect", lambda connection, _: arrays.register(connection.adapters))

    def listen(self, listener: Callable[[Sequence[Any]], None]) -> None:
        """Has `listener` called with the events that a transaction of this process appended to the journal, after its commit; with none when
        they have to be read.
        """
        self._listeners.append(listener)

    @property
    def url(self) -> URL:
        """Where the database is, as SQLAlchemy takes it."""
        return self._url

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """One transaction: committed at the end of the block, rolled back when it raises.

        Raises StoreUnavailable, StoreConflict for what passes; other errors of the database as SQLAlchemy raises them.
        """
        appended: Sequence[Any] | None = None
        try:
            async with Transaction(self._engine, expire_on_commit=False) as session:
                async with session.begin():
                    yield session
                appended = session.info.get(APPENDED)
        except (sqlalchemy.exc.DBAPIError, sqlalchemy.exc.TimeoutError, psycopg.OperationalError, OSError) as error:
            raised = translate(error)
            if raised is None:
                raise
            raise raised from error
        if appended is not None:
            for listener in self._listeners:
                listener(appended)

    async def connect(self, purpose: str) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """A connection outside the pool, in autocommit mode and without a statement timeout; the caller closes it.

        `purpose` is shown in `pg_stat_activity`. Raises StoreUnavailable.
        """
        positional, keywords = self._engine.dialect.create_connect_args(self._url)
        # A server waiting for a lock on behalf of a client that is gone would get the lock; it has to look.
        keywords = {
            **keywords,
            **_LIVENESS,
            "application_name": f"retinue-{purpose}",
            "options": _options(statement_timeout=0, client_connection_check_interval="2s", timezone="UTC"),
        }
        try:
            return await psycopg.AsyncConnection.connect(*positional, autocommit=True, **keywords)
        except (psycopg.OperationalError, OSError) as error:
            raise StoreUnavailable(f"no connection to the database for {purpose}") from error

    async def dispose(self) -> None:
        """Closes the pool."""
        await self._engine.dispose()


@functools.lru_cache(maxsize=256)
def _of_driver(sql: str) -> str:
    """The SQL as the driver takes it."""
    return str(text(sql).compile(dialect=_DIALECT))


def translate(error: BaseException) -> StoreUnavailable | None:
    """What an error of the driver or of SQLAlchemy means, when it is one that passes; None for all others."""
    if isinstance(error, sqlalchemy.exc.TimeoutError):
        return StoreUnavailable("all connections to the database are in use")
    broken = isinstance(error, sqlalchemy.exc.DBAPIError) and error.connection_invalidated
    cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
    state = getattr(cause, "sqlstate", None)
    if state in _CONFLICTS:
        return StoreConflict("another transaction was in the way")
    if broken or isinstance(cause, OSError):
        return StoreUnavailable("the connection to the database broke")
    if state is None:
        # Without a state it was the driver that failed: it could not connect, or lost the connection.
        return (
            StoreUnavailable("the database cannot be reached") if isinstance(cause, psycopg.OperationalError) else None
        )
    if state[:2] in _PASSING_CLASSES or state in _PASSING_CODES:
        return StoreUnavailable(f"the database could not finish ({state})")
    return None
