"""Whether the database takes changes, looked at again and again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import psycopg
from prometheus_client import Gauge

from retinue.manager.store.postgres.database import Database, StoreUnavailable, translate
from retinue.manager.store.postgres.dedicated import DedicatedConnection, execute_within
from retinue.manager.store.postgres.faults import Fault, fault_of
from retinue.manager.store.postgres.writes import Snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_INTERVAL_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_SPACE_EVERY = 10
_WRITABLE = Gauge("retinue_manager_database_writable", "1 while the database takes changes, else 0.")

# Changes nothing, and is refused where changes are: by a standby, in transactions that only read, without rights. It
# finds whether others have changed anything.
_CHANGE = """
    WITH tried AS (UPDATE leadership_lease SET renewal = renewal WHERE false)
    SELECT renewal, pg_snapshot_xmin(seen)::text::bigint, pg_snapshot_xmax(seen)::text::bigint
    FROM leadership_lease, pg_current_snapshot() AS seen
"""
# Temporary rows take space where the tables have it, and write no log; the server drops them with each commit.
_MAKE_FILLER = """
    SET temp_tablespaces = '';
    CREATE TEMPORARY TABLE retinue_filler (filler text) ON COMMIT DELETE ROWS
"""
# Some 500 kB.
_TAKE_SPACE = "INSERT INTO pg_temp.retinue_filler SELECT repeat('x', 1900) FROM generate_series(1, 260)"


async def watch_database(database: Database, report: Callable[[str, bool], Awaitable[None]]) -> None:
    """Reports each second why the database does not take changes now, empty when it does, and whether it answers, until
    cancelled, and has `database.writes` know what anyone writes. What hangs is reported within three seconds.

    It uses a connection of its own: the pool's may all be in use, which says nothing about the database. What
    transactions were refused in the last seconds counts, too.
    """
    probe = _Probe(database)
    try:
        with database.writes.watching():
            while True:
                reason, answers = await probe.find_reason()
                if not reason and (refusal := database.refusal) is not None:
                    reason = reason_of(refusal)
                _WRITABLE.set(0 if reason else 1)
                await report(reason, answers)
                await asyncio.sleep(_INTERVAL_SECONDS)
    finally:
        _WRITABLE.set(0)
        await probe.close()


def reason_of(fault: Fault | None) -> str:
    """Returns why the database cannot be used, with what to do; without the words of the server, which may name
    hosts, roles and files: any host may ask.
    """
    if fault is None:
        return "the database does not answer: start it, or look for what keeps it busy"
    return f"the database cannot work, {fault.summary}{fault.advice and f': {fault.advice}'}"


class _Probe:
    """A connection that tries changes, opened again after each failure."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: DedicatedConnection | None = None
        self._takes_space = False
        self._looks = 0
        # Transactions of its own that took space since the last look.
        self._own = 0

    async def find_reason(self) -> tuple[str, bool]:
        try:
            connection = self._connection
            if connection is None:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    connection = self._connection = await self._database.connect("health")
                await self._look(connection)
                await self._make_filler(connection)
                self._database.writes.lose_sight()
            else:
                await self._look(connection)
            if self._takes_space and self._looks % _SPACE_EVERY == 0:
                await execute_within(connection, _ANSWER_SECONDS, _TAKE_SPACE)
                self._own += 1
            self._looks += 1
        except (StoreUnavailable, psycopg.Error, TimeoutError, OSError) as error:
            self._database.writes.lose_sight()
            await self.close()
            fault = self._noted(error)
            return reason_of(fault), fault is not None and not fault.passes
        return "", True

    async def _look(self, connection: DedicatedConnection) -> None:
        own, self._own = self._own, 0
        for row in await execute_within(connection, _ANSWER_SECONDS, _CHANGE):
            self._database.writes.look(Snapshot(*row), own)

    async def _make_filler(self, connection: DedicatedConnection) -> None:
        self._looks = 0
        try:
            await execute_within(connection, _ANSWER_SECONDS, _MAKE_FILLER)
            self._takes_space = True
        except psycopg.errors.InsufficientPrivilege:
            # Without the right to temporary tables, a full disk is met by transactions only.
            self._takes_space = False

    def _noted(self, error: BaseException) -> Fault | None:
        if isinstance(error, StoreUnavailable):
            return error.fault
        found = translate(error) or StoreUnavailable("the database could not finish", fault_of(error))
        self._database.note(found)
        return found.fault

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()
