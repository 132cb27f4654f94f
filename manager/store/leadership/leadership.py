"""Leadership: an advisory lock elects, a lease ends what is silent, a number in the database fences.

The lock belongs to one dedicated connection and goes with it: where the end of a leader is visible, another one leads
at once. Where it is not, since the leader's process is paused or cut off, its lease ends, and a candidate ends its
connections at the server. The one that gets the lock increments the term; every write of a leader reads the term's row
with a share lock in its own transaction, so that a leader who was replaced, and may not know it yet,
commits nothing after its successor has begun.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import select

from retinue.manager.store.leadership.lease import (
    RENEWAL_SECONDS,
    Lease,
    LeaseObservation,
    NotLeader,
    Observer,
    boot_time,
)
from retinue.manager.store.postgres.constructs import table_of
from retinue.manager.store.postgres.database import Database, Query, StoreUnavailable, Transaction
from retinue.manager.store.postgres.dedicated import DedicatedConnection, execute_within, is_readable, take_notices
from retinue.manager.store.postgres.faults import fault_of
from retinue.manager.store.postgres.repeats import Repeats
from retinue.manager.store.tables import Leadership
from retinue.rpc import failpoints
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

__all__ = ["Lease", "NotLeader", "campaign", "check", "checking", "lead"]

_log = logging.getLogger(__name__)

# "retinue" in ASCII; locks are of a database, and clusters may share one, each in a schema of its own.
_LOCK = 0x726574696E7565
_READ_LOCK = """
    SELECT CASE current_schema() WHEN 'public' THEN %(lock)s ELSE %(lock)s # hashtextextended(current_schema(), 0) END
"""
_POLL_SECONDS = 0.25
_ANSWER_SECONDS = 3.0
# How long a term that begins waits for writes of the one before; then their connections are ended.
_PATIENCE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 15.0
# While the database is away.
_LONGEST_OUTAGE_PAUSE_SECONDS = 1.0

# Who holds the lock, and the last renewal.
_LOOK = """
    SELECT l.pid, a.backend_start, lease.renewal
    FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
    JOIN pg_stat_activity a ON a.pid = l.pid, leadership_lease lease
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
        AND l.classid = (%(key)s::bigint >> 32)::int AND l.objid = (%(key)s::bigint & 4294967295)::oid
"""
# In one statement: a renewal that comes at the same time either succeeds, and then nothing is ended, or never does. A
# process names all its connections alike, and whatever its transactions hold would keep others waiting;
# what is left of a former connection of this process goes alone.
_END_LEASE = """
    WITH ended AS (UPDATE leadership_lease SET renewal = renewal + 1 WHERE renewal = %(renewal)s RETURNING 1)
    SELECT a.pid, pg_terminate_backend(a.pid)
    FROM ended, pg_stat_activity held JOIN pg_stat_activity a ON a.datname = held.datname AND (
        a.pid = held.pid OR split_part(a.application_name, '/', 2) = split_part(held.application_name, '/', 2)
            AND split_part(held.application_name, '/', 2) NOT IN ('', split_part(current_setting('application_name'), '/', 2))
    )
    WHERE held.pid = %(pid)s AND held.backend_start = %(began)s
"""
_END_BLOCKERS = """
    SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = ANY(pg_blocking_pids(%s)) AND datname = current_database() AND application_name LIKE 'retinue-%%'
"""
_RENEW = "UPDATE leadership_lease SET renewal = renewal + 1, renew_time = now() WHERE renewal = %s RETURNING renewal"
# Finds when the term before was renewed last.
_TAKE_OVER = """
    UPDATE leadership_lease SET renewal = leadership_lease.renewal + 1, renew_time = now()
    FROM leadership_lease AS former WHERE former.id = leadership_lease.id RETURNING former.renew_time
"""
_TAKE_LEASE = "UPDATE leadership_lease SET renewal = renewal + 1, renew_time = now() RETURNING renewal"
_BEGIN = "UPDATE leadership SET term = term + 1, holder = %s, acquire_time = now() WHERE id = 1 RETURNING term"


async def check(tx: Transaction, term: int, *, alone: bool = False) -> None:
    """Makes a transaction conditional on a term: no other begins until it ends. Its next statements, or its commit,
    raise NotLeader when one has.

    With `alone`, it waits at once for the leader's other transactions, and they for it; raises NotLeader.
    """
    if alone:
        await tx.pipeline(checking(term, alone=True))
    else:
        tx.ahead(checking(term), guards=True)


def checking(term: int, *, alone: bool = False) -> Query[None]:
    """Returns `check` as a query among others, which raises NotLeader as that does."""
    lock = "FOR UPDATE" if alone else "FOR SHARE"

    def read(rows: Sequence[object]) -> None:
        if not rows:
            raise NotLeader(f"term {term} has ended")

    return Query(f"SELECT 1 FROM leadership WHERE id = 1 AND term = :term {lock}", {"term": term}, read=read)  # noqa: S608


async def read_holder(tx: AsyncSession) -> str:
    """Returns who leads, or led last, as HOST:PID; empty before anyone has."""
    found = await tx.execute(select(table_of(Leadership).c.holder))
    return str(found.scalar_one_or_none() or "")


async def campaign(database: Database, holder: str, body: Callable[[Lease], Awaitable[None]]) -> None:
    """Leads again and again until cancelled: runs `body(lease)` for as long as each term lasts.

    `holder` is recorded for people to read. A body that raises ends its term; the next one begins after a pause that
    grows up to 15 s as long as terms stay short, and up to a second while the database is away.
    """
    clock = asyncio.get_running_loop().time
    pause, repeats = 0.1, Repeats()
    while True:
        began, longest = clock(), _LONGEST_PAUSE_SECONDS
        try:
            await cancellable(lead, database, holder, body)
        except (NotLeader, StoreUnavailable) as error:
            if repeats.is_due(str(error), clock()):
                _log.warning("not leading: %s", error)
            longest = _LONGEST_OUTAGE_PAUSE_SECONDS
        except UnrequestedCancellationError as error:
            _log.warning("the leader is interrupted and steps down: %s", error)
        except Exception:  # noqa: BLE001  # logged whole; the next term starts from what is stored
            _log.exception("the leader failed and steps down")
        pause = 0.1 if clock() - began > _LONGEST_PAUSE_SECONDS else min(2 * pause, longest)
        await asyncio.sleep(pause)


async def lead(database: Database, holder: str, body: Callable[[Lease], Awaitable[None]]) -> None:
    """Waits for the lock and runs `body(lease)` while the lease is renewed;
    the body is cancelled at once when it is not.

    Returns when the body does. Raises NotLeader when the lock or the lease was lost, StoreUnavailable when the database
    cannot be reached, UnrequestedCancellationError when a renewal was cancelled, and what the body raises, as a group,
    unless all of it is of these.
    """
    async with _lock(database) as connection:
        lease, renewal = await _begin(database, connection, holder)
        _log.info("leading in term %d", lease.term)
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(cancellable(_renew, connection, lease, renewal), name="leadership lease")
                await body(lease)
                renewing.cancel()
        except BaseExceptionGroup as group_error:
            ended, failed = group_error.split((NotLeader, StoreUnavailable, UnrequestedCancellationError))
            if ended is None or failed is not None:
                raise
            raise _leaves(ended)[0] from None
        finally:
            _log.info("term %d has ended", lease.term)


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


@asynccontextmanager
async def _lock(database: Database) -> AsyncIterator[DedicatedConnection]:
    connection = await database.connect("leader")
    try:
        observer = Observer()
        ((lock,),) = await _answer(connection, _READ_LOCK, {"lock": _LOCK})
        # Asked for again and again, and not waited for: a connection that is cut off while it waits at the server would
        # get the lock, and keep it.
        while not (await _answer(connection, "SELECT pg_try_advisory_lock(%s)", (lock,)))[0][0]:
            for pid, began, renewal in await _answer(connection, _LOOK, {"key": lock}):
                seen = LeaseObservation(pid, began, renewal)
                if observer.has_ended(seen, boot_time()):
                    _log.warning("the leader did not renew its lease: its connections are ended")
                    await _answer(connection, _END_LEASE, {"pid": pid, "began": began, "renewal": renewal})
            await asyncio.sleep(_POLL_SECONDS)
        yield connection
    finally:
        # The lock goes with the connection.
        await connection.close()


async def _begin(database: Database, connection: DedicatedConnection, holder: str) -> tuple[Lease, int]:
    """Takes the lease, and begins a term when all writes of the one before are committed or
    have no connection any more.
    """
    ((former,),) = await _answer(connection, _TAKE_OVER)
    # A pooler tells another number at the login.
    ((pid,),) = await _answer(connection, "SELECT pg_backend_pid()")
    ending = asyncio.create_task(_end_blockers(database, pid))
    try:
        rows = await _answer(connection, _BEGIN, (holder,), _PATIENCE_SECONDS + _ANSWER_SECONDS)
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
    if not rows:
        raise StoreUnavailable("the database has no leadership row")
    # A renewal matters while the server runs, and not after its crash: it need not wait for the disk,
    # which may take longer than the lease.
    await _answer(connection, "SET synchronous_commit = off")
    sent = boot_time()
    ((renewal,),) = await _answer(connection, _TAKE_LEASE)
    return Lease(int(rows[0][0]), sent, former=former), int(renewal)


async def _end_blockers(database: Database, pid: int) -> None:
    """Ends whatever keeps a connection waiting, again and again until cancelled."""
    await asyncio.sleep(_PATIENCE_SECONDS)
    connection = await database.connect("leader-start")
    try:
        while True:
            ended = await execute_within(connection, _ANSWER_SECONDS, _END_BLOCKERS, (pid,))
            if ended:
                _log.warning("writes of the term before did not end: %d connections are ended", len(ended))
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        await connection.close()


@failpoints.awaited("store.leadership", StoreUnavailable)
async def _renew(connection: DedicatedConnection, lease: Lease, renewal: int) -> None:
    """Renews the lease until it is lost, which ends with NotLeader: at once when the connection ends,
    as it is listened to all the while.
    """
    try:
        while True:
            due = asyncio.get_running_loop().time() + RENEWAL_SECONDS
            while (left := due - asyncio.get_running_loop().time()) > 0:
                if await is_readable(connection, left):
                    await take_notices(connection)
            lease.check()
            sent = boot_time()
            rows = await execute_within(connection, lease.remaining(), _RENEW, (renewal,))
            if not rows:
                raise NotLeader(f"the lease of term {lease.term} was ended by another manager")
            ((renewal,),) = rows
            lease.renewed(sent)
    except (StoreUnavailable, psycopg.Error, OSError) as error:
        raise NotLeader(f"the lock of term {lease.term} was lost") from error


async def _answer(
    connection: DedicatedConnection,
    statement: str,
    params: Sequence[object] | dict[str, object] = (),
    seconds: float = _ANSWER_SECONDS,
) -> list[tuple[Any, ...]]:
    try:
        return await execute_within(connection, seconds, statement, params)
    except psycopg.Error as error:
        raise StoreUnavailable("the database did not do what leading needs", fault_of(error)) from error
