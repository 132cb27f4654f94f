"""The way to PostgreSQL: pooled transactions for data, and dedicated connections for locks and wake-ups."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import psycopg
import sqlalchemy.exc
from prometheus_client import Counter
from sqlalchemy import Executable, Result
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.ext.asyncio import AsyncSession as SqlAlchemySession
from sqlalchemy.util import greenlet_spawn
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.postgres.connections import (
    Driver,
    is_between_statements,
    make_pool,
    open_connection,
    parse_url,
)
from retinue.manager.store.postgres.constructs import Construct
from retinue.manager.store.postgres.exchange import exchange
from retinue.manager.store.postgres.faults import Fault, fault_of
from retinue.manager.store.postgres.lanes import POOL_SIZES, Lane, current_lane
from retinue.manager.store.postgres.recordset import Row, fetched
from retinue.manager.store.postgres.repeats import Repeats
from retinue.manager.store.postgres.writes import Writes
from retinue.rpc import failpoints
from retinue.rpc.cancellation import shielded

if TYPE_CHECKING:
    from types import FrameType

    from sqlalchemy.engine import URL

# A statement of a caller that was cancelled may run on for so long; then the server is asked to end it,
# and the connection is discarded.
_GRACE_SECONDS = 1.0
# The server ends a statement after its timeout; an answer that comes so much later does not come.
_LATE_SECONDS = 5.0
# Serialization failure, deadlock, lock not available: the same transaction may pass when it is tried again.
_CONFLICTS = ("40001", "40P01", "55P03")

REFUSAL_SECONDS = 15.0
"""For so long after a fault that stops all changes the database counts as one that refuses them."""
_log = logging.getLogger(__name__)
_FAULTS = Counter(
    "retinue_manager_database_faults",
    "What the database has refused or failed at, by SQLSTATE; none for connections that did not come about.",
    ["state"],
)

_DRIVER_ERRORS = (sqlalchemy.exc.DBAPIError, sqlalchemy.exc.TimeoutError, psycopg.OperationalError, OSError)

# The modules between a step of a transaction and the function that takes it.
_BETWEEN = (__name__, "contextlib")

# Where a transaction keeps the events it has appended to the journal.
APPENDED = "appended"


class StoreUnavailable(Exception):  # noqa: N818  # a condition of the store that passes, not a mistake
    """The database could not be reached or could not finish: the transaction may be tried again.

    When it was raised by the commit itself, the effect may be there or not. `fault` is what the database said, if it
    said anything; it is logged by then.
    """

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message if fault is None else f"{message}: {fault}")
        self.fault = fault


class StoreBusy(StoreUnavailable):
    """All connections of the lane were in use for too long: nothing was done."""


class StoreConflict(StoreUnavailable):
    """The transaction lost against another one and left nothing behind: it may be tried again at once."""


_Found_co = TypeVar("_Found_co", covariant=True)
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A construct, or SQL with parameters named as in `:name`, to be executed together with others."""

    sql: str | Construct
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Query(Statement, Generic[_Found_co]):
    """A statement with the function that makes records of the rows that it finds."""

    read: Callable[[Sequence[Row]], _Found_co] = field(kw_only=True)


class Answers:
    """Returns what the queries of one round trip have found."""

    def __init__(self, found: Mapping[Statement, object]) -> None:
        self._found = found

    def of(self, query: Query[_Found_co]) -> _Found_co:
        """Returns what a query has found. Raises KeyError when it was not among the statements."""
        return cast("_Found_co", self._found[query])


@dataclass(slots=True)
class Later(Generic[_Found]):
    """A query that goes ahead of the next statements, and what it finds."""

    query: Query[_Found]
    guards: bool
    then: Callable[[_Found], object] | None
    _found: list[_Found] = field(default_factory=list)

    @property
    def found(self) -> _Found:
        """Returns what a query has found. Raises IndexError before the next statements were executed."""
        return self._found[0]

    def take(self, rows: Sequence[Row]) -> None:
        """Takes the rows in. Raises what the query raises about them."""
        found = self.query.read(rows)
        self._found.append(found)
        if self.then is not None:
            self.then(found)


class Transaction(AsyncSession):
    """A session of SQLModel that also takes SQL as text, and whose statements are not cancelled halfway.

    Whatever it sends to the database is received to its end, also when the caller is cancelled meanwhile: callers
    choose when their calls are cancelled, and a connection with half an answer in it would
    hand the rest to its next user.

    SQLModel's `execute` takes text too and warns against itself, in favour of `exec`, which does not.
    """

    # An exchange with a server that says nothing ends after so long.
    limit_seconds: float | None = None
    # What is executed before anything else is.
    _ahead: Sequence[Later[Any]] = ()
    # Its connection, once a pipeline has asked for that.
    _taken: tuple[AsyncConnection, Driver] | None = None
    # Whether the last thing that it did was to end by a pipeline's commit.
    ended = False

    def ahead(
        self, query: Query[_Found], *, guards: bool = False, then: Callable[[_Found], object] | None = None
    ) -> Later[_Found]:
        """Has a query executed with the next statements of the transaction, before them, or with its commit: it takes
        no round trip of its own. Whatever comes next raises what the query raises about its rows.

        What a query that `guards` refuses is not committed; `then` is called with what any finds.
        """
        later = Later(query, guards, then)
        self._ahead, self.ended = (*self._ahead, later), False
        return later

    async def pipeline(self, *statements: Statement, commit: bool = False) -> Answers:
        """Executes statements of which none needs to know what another one found, in order;
        returns what the queries among them found.

        All of them take one round trip, and with `commit` that is also the transaction's end: on the way of a session
        to its agent, round trips are most of what there is. Raises the driver's own errors,
        and what a query raises about its rows.
        """
        if self._taken is None:
            connection = await SqlAlchemySession.connection(self)
            driver: Driver = (await connection.get_raw_connection()).driver_connection  # type: ignore[assignment]
            self._taken = connection, driver
        connection, driver = self._taken
        self.ended = False

        async def exchanged(statements: Sequence[Statement], *, commit: bool) -> list[list[Row]]:
            commands = [_construct(each.sql).command(each.params) for each in statements]
            try:
                async with driver.lock:
                    return await driver.wait(exchange(driver, commands, commit=commit))
            except BaseException as error:
                # An error of the server ends the exchange in good order; a connection that is lost is noticed at its
                # rollback, with all others.
                if not driver.closed and not (isinstance(error, psycopg.Error) and is_between_statements(driver)):
                    await connection.invalidate()
                raise

        ahead, self._ahead = self._ahead, ()
        together = [*(later.query for later in ahead), *statements]
        guarded = any(later.guards for later in ahead)
        rows = await exchanged(together, commit=commit and not guarded)
        for later, found in zip(ahead, rows[: len(ahead)], strict=True):
            later.take(found)
        if commit and guarded:
            await exchanged((), commit=True)
        self.ended = commit
        answered = zip(statements, rows[len(ahead) :], strict=True)
        return Answers({query: query.read(found) for query, found in answered if isinstance(query, Query)})

    async def execute(self, statement: Executable, params: Any = None, **options: Any) -> Result[*tuple[Any, ...]]:
        """Executes any statement; `params` is one mapping, or a sequence of them."""
        return await SqlAlchemySession.execute(self, statement, params, **options)


async def run(tx: AsyncSession, statement: Statement) -> Result[*tuple[Any, ...]]:
    """Executes a statement by itself."""
    return await tx.execute(_construct(statement.sql).statement, dict(statement.params))


async def fetch(tx: AsyncSession, query: Query[_Found_co]) -> _Found_co:
    """Executes a query by itself."""
    return query.read(fetched(await run(tx, query)))


def _shield(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def shield(tx: Transaction, *args: Any, **options: Any) -> Any:
        if method.__name__ != "pipeline":
            # The library's methods may begin a transaction again, on another connection.
            tx.ended, tx._taken = False, None  # noqa: SLF001
        if method.__name__ in GIVING_UP:
            # With what was to be executed next.
            tx._ahead = ()  # noqa: SLF001

        async def after_those_ahead() -> Any:
            await _pipeline(tx)
            return await method(tx, *args, **options)

        def step() -> Coroutine[Any, Any, Any]:
            # Whatever sends something, by any of the library's methods.
            waits = tx._ahead and method.__name__ != "pipeline" and method.__name__ not in GIVING_UP  # noqa: SLF001
            work = after_those_ahead() if waits else method(tx, *args, **options)
            return shielded(work, _GRACE_SECONDS, tx.limit_seconds)

        if failpoints.active is None or method.__name__ in GIVING_UP or (site := _site()) is None:
            return await step()
        return await failpoints.active.awaited(f"store.{method.__name__}@{site}", step, _broken)

    return shield


def _site() -> str | None:
    """Returns the function that a statement or a commit is of; None when it is a part of another one."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  # the awaiter of the caller
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        if frame.f_code.co_name == "shield":
            return None
        frame = frame.f_back
    module = "" if frame is None else str(frame.f_globals.get("__name__"))
    # Within the library, whose own calls of its methods are no steps, and in its threads.
    return failpoints.site(frame) if module.startswith("retinue.") else None


def _broken(text: str) -> psycopg.OperationalError:
    return psycopg.OperationalError(text)


def shielded_methods() -> list[str]:
    """The methods of a transaction that may send something: all that are awaited."""
    methods = inspect.getmembers(Transaction, inspect.iscoroutinefunction)
    return [name for name, found in methods if not name.startswith("_") and not inspect.ismethod(found)]


GIVING_UP = frozenset({"aclose", "close", "invalidate", "reset", "rollback"})
"""Methods that only give a transaction up, and are no failpoints: nothing is lost with their answers."""
_pipeline = Transaction.pipeline
# All at once: a method that the library gains, or that is used for the first time, is not forgotten.
for _name in shielded_methods():
    setattr(Transaction, _name, _shield(getattr(Transaction, _name)))


class Database:
    """One database, through bounded pools of connections, one for each lane. Transactions are READ COMMITTED."""

    def __init__(self, url: str, *, sizes: Mapping[Lane, int] = POOL_SIZES, statement_timeout: float = 20.0) -> None:
        """`sizes` are the connections of the lanes at most; a statement ends after `statement_timeout` seconds."""
        self._url = parse_url(url)
        # Names all connections of a process, so that others can end them together.
        self._instance = secrets.token_hex(8)
        self._listeners: list[Callable[[Sequence[Any]], None]] = []
        self._sizes = sizes
        self._statement_timeout = statement_timeout
        self._pools: dict[Lane, AsyncEngine] = {}
        self._repeats = Repeats()
        self._refusal: tuple[Fault, float] | None = None
        self.writes = Writes()
        """What anyone writes to it."""

    def _pool(self) -> AsyncEngine:
        lane = current_lane()
        if lane not in self._pools:
            name = f"retinue-{lane}/{self._instance}"
            self._pools[lane] = make_pool(self._url, name, self._sizes[lane], self._statement_timeout)
        return self._pools[lane]

    def listen(self, listener: Callable[[Sequence[Any]], None]) -> None:
        """Has `listener` called with the events that a transaction of this process appended to the journal, after its
        commit; with none when they have to be read.
        """
        self._listeners.append(listener)

    @property
    def url(self) -> URL:
        """Returns the URL of the database, as SQLAlchemy takes it."""
        return self._url

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """One transaction, in the lane of the task: committed at the end of the block, rolled back when it raises.

        Raises StoreUnavailable, StoreBusy, StoreConflict for what passes;
        other errors of the database as SQLAlchemy raises them.
        """
        engine = self._pool()
        pool = engine.pool
        tx = Transaction(engine, expire_on_commit=False)
        tx.limit_seconds = self._statement_timeout + _LATE_SECONDS
        committed = False
        try:
            try:
                yield tx
                if not tx.ended:
                    await tx.commit()
                committed = True
            except BaseException:
                # What ended the block is raised, a cancellation above all,
                # and not what its rollback met on a broken connection.
                with contextlib.suppress(*_DRIVER_ERRORS):
                    await tx.close()
                raise
            else:
                await tx.close()
            finally:
                if engine.pool is not pool:
                    # Closed meanwhile: the connection went back to a pool that nothing uses or closes any more.
                    await shielded(greenlet_spawn(pool.dispose), _GRACE_SECONDS)
        except _DRIVER_ERRORS as error:
            raised = translate(error)
            if raised is None:
                raise
            if raised.fault is not None and raised.fault.meaning is not None and raised.fault.meaning.stops:
                self._refusal = (raised.fault, time.monotonic())
            self.note(raised)
            raise raised from error
        finally:
            if (appended := tx.info.get(APPENDED)) is not None:
                for listener in self._listeners:
                    # A commit that was cancelled, or broke, may have taken effect.
                    listener(appended if committed else ())

    async def connect(self, purpose: str) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """A connection outside the pool, in autocommit mode and without a statement timeout; the caller closes it.

        `purpose` is shown in `pg_stat_activity`. Raises StoreUnavailable.
        """
        settings = {
            "statement_timeout": "0",
            # A server waiting for a lock on behalf of a client that is gone would get the lock; it has to look.
            "client_connection_check_interval": "2s",
            "timezone": "UTC",
        }
        try:
            return await open_connection(self._url, f"retinue-{purpose}/{self._instance}", settings)
        except (psycopg.OperationalError, OSError) as error:
            raised = StoreUnavailable(f"no connection to the database for {purpose}", fault_of(error))
            self.note(raised)
            raise raised from error

    @property
    def refusal(self) -> Fault | None:
        """Returns the fault that a transaction has met in the last 15 s and that stops all changes; None for none."""
        if self._refusal is None or time.monotonic() - self._refusal[1] > REFUSAL_SECONDS:
            return None
        return self._refusal[0]

    def note(self, raised: StoreUnavailable) -> None:
        """Logs and counts what the database refuses: an error if an administrator has to act. Logs it again only after
        a minute.
        """
        if (fault := raised.fault) is None or isinstance(raised, StoreConflict):
            return
        now = time.monotonic()
        _FAULTS.labels(fault.state or "none").inc()
        if self._repeats.is_due(fault.state or fault.words, now):
            _log.log(logging.WARNING if fault.passes else logging.ERROR, "%s", raised)

    async def dispose(self) -> None:
        """Closes the pools; the connections of transactions that are open are closed at the end of these."""
        for pool in self._pools.values():
            await pool.dispose()


@functools.lru_cache(maxsize=256)
def _of_text(sql: str) -> Construct:
    return Construct(sql)


def _construct(sql: str | Construct) -> Construct:
    return _of_text(sql) if isinstance(sql, str) else sql


def translate(error: BaseException) -> StoreUnavailable | None:
    """Returns the store's error for a transient one of the driver or of SQLAlchemy; None for all others."""
    if isinstance(error, sqlalchemy.exc.TimeoutError):
        return StoreBusy("all connections to the database that calls of this kind may use are in use")
    broken = isinstance(error, sqlalchemy.exc.DBAPIError) and error.connection_invalidated
    cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
    state, fault = getattr(cause, "sqlstate", None), fault_of(error)
    if state in _CONFLICTS:
        return StoreConflict("another transaction was in the way", fault)
    if broken or isinstance(cause, OSError):
        return StoreUnavailable("the connection to the database broke", fault)
    if state is None:
        # Without a state it was the driver that failed: it could not connect, or lost the connection.
        is_connection = isinstance(cause, psycopg.OperationalError)
        return StoreUnavailable("the database cannot be reached", fault) if is_connection else None
    if fault is not None and fault.is_known:
        return StoreUnavailable("the database could not finish", fault)
    return None
