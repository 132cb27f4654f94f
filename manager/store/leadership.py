"""Leadership: an advisory lock elects, a number in the database fences.

The lock belongs to one dedicated connection and goes with it. Whoever gets the lock increments the term; every write of
a leader reads the term's row with a share lock in its own transaction, so that a leader whose lock is gone, and who may
not know it yet, commits nothing after its successor has begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from manager.cancellation import cancellable
from manager.store.database import Database, Statement, StoreUnavailable

_log = logging.getLogger(__name__)

# "retinue" in ASCII.
_LOCK = 0x726574696E7565
_PROBE_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 15.0

_Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class NotLeader(Exception):  # noqa: N818  # a fact, not a mistake
    """Another term leads, or the lock was lost: nothing may be written under this term any more."""


async def check(tx: AsyncSession, term: int, *, alone: bool = False) -> None:
    """Makes a transaction conditional on a term: no other begins until it ends. Raises NotLeader when one has.

    With `alone`, it waits for the leader's other transactions, and they for it.
    """
    lock = "FOR UPDATE" if alone else "FOR SHARE"
    row = await tx.execute(text(f"SELECT 1 FROM leadership WHERE id = 1 AND term = :term {lock}"), {"term": term})  # noqa: S608
    if row.first() is None:
        raise NotLeader(f"term {term} is over")


def checking(term: int) -> Statement:
    """`check` as a statement among others, for `checked`."""
    return Statement("SELECT 1 FROM leadership WHERE id = 1 AND term = :term FOR SHARE", {"term": term})


def checked(found: Sequence[object], term: int) -> None:
    """Takes the answer to `checking`. Raises NotLeader when another term has begun."""
    if not found:
        raise NotLeader(f"term {term} is over")


async def campaign(database: Database, holder: str, body: Callable[[int], Awaitable[None]]) -> None:
    """Leads again and again until cancelled: runs `body(term)` for as long as each term lasts.

    `holder` is recorded for people to read. A body that raises ends its term; the next one begins after a pause that
    grows up to 15 s as long as terms stay short.
    """
    clock = asyncio.get_running_loop().time
    pause = 0.1
    while True:
        began = clock()
        try:
            await cancellable(lead(database, holder, body))
        except (NotLeader, StoreUnavailable) as error:
            _log.warning("not leading: %s", error)
        except Exception:  # noqa: BLE001  # logged whole; the next term starts from what is stored
            _log.exception("the leader failed and steps down")
        pause = 0.1 if clock() - began > _LONGEST_PAUSE_SECONDS else min(2 * pause, _LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)


async def lead(database: Database, holder: str, body: Callable[[int], Awaitable[None]]) -> None:
    """Waits for the lock and runs `body(term)` while it is held; the body is cancelled at once when it is lost.

    Returns when the body does. Raises NotLeader when the lock was lost, StoreUnavailable when the database cannot be
    reached, and what the body raises, as a group, unless all of it says that the term is over.
    """
    async with _lock(database) as connection:
        term = await _begin(connection, holder)
        _log.info("leading in term %d", term)
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(_watch(connection, term), name="leadership watch")
                await body(term)
                watch.cancel()
        except BaseExceptionGroup as group_error:
            over, failed = group_error.split((NotLeader, StoreUnavailable))
            if over is None or failed is not None:
                raise
            raise _leaves(over)[0] from None
        finally:
            _log.info("term %d is over", term)


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


@asynccontextmanager
async def _lock(database: Database) -> AsyncIterator[_Connection]:
    connection = await database.connect("leader")
    try:
        try:
            await connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        except psycopg.Error as error:
            raise StoreUnavailable("the connection broke while waiting to lead") from error
        yield connection
    finally:
        # The lock goes with the connection; a broken one cannot be told so politely.
        await connection.close()


async def _begin(connection: _Connection, holder: str) -> int:
    try:
        cursor = await connection.execute(
            "UPDATE leadership SET term = term + 1, holder = %s, acquire_time = now() WHERE id = 1 RETURNING term",
            (holder,),
        )
        row = await cursor.fetchone()
    except psycopg.Error as error:
        raise StoreUnavailable("the connection broke at the start of a term") from error
    if row is None:
        raise StoreUnavailable("the database has no leadership row")
    return int(row[0])


async def _watch(connection: _Connection, term: int) -> None:
    """Ends with NotLeader as soon as the connection is gone: the socket is listened to, and asked when it is silent."""
    try:
        while True:
            async for _ in connection.notifies(timeout=_PROBE_SECONDS):
                pass
            async with asyncio.timeout(_ANSWER_SECONDS):
                await connection.execute("SELECT 1")
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise NotLeader(f"the lock of term {term} was lost") from error
