"""Leaders are paused, cut off and disconnected: another one leads,
and the old one does and writes nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.manager.store.postgres.database import Database
from tests.support.databases import Postgres, fresh_database
from tests.support.eventually import NEVER, eventually
from tests.support.silence import silent_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Campaigner:
    """A process that campaigns."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        # Terms and when they began, and when it acted in each, by the clock of the machine.
        self.began: dict[int, float] = {}
        self.acted: dict[int, float] = {}
        self.wrote: set[int] = set()
        self._ended: set[int] = set()
        self._changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            word, *rest = line.split()
            if word == b"leads":
                self.began[int(rest[0])] = float(rest[1])
            elif word == b"acted":
                self.acted[int(rest[0])] = float(rest[1])
            elif word == b"wrote":
                self.wrote.add(int(rest[0]))
            elif word == b"ended":
                self._ended.add(int(rest[0]))
            self._changed.set()

    async def leads(self, after: int = 0) -> int:
        """Returns a later term than `after` once it has written something in it.

        Terms are compared and not counted: a machine that stands still for some seconds ends one.
        """

        def found() -> list[int]:
            return [term for term in self.acted if term > after and term in self.wrote]

        await self._until(lambda: bool(found()))
        return found()[0]

    async def ended(self, term: int) -> None:
        """Returns once it does nothing in a term any more, and all that it said of it is known."""
        await self._until(lambda: term in self._ended)

    async def _until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(NEVER):
            while not reached():
                self._changed.clear()
                await self._changed.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading


@contextlib.asynccontextmanager
async def campaigner(url: str) -> AsyncIterator[Campaigner]:
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.faults.campaigner",
        url,
        cwd=root,
        env=dict(os.environ),
        stdout=asyncio.subprocess.PIPE,
    )
    made = Campaigner(process)
    try:
        yield made
    finally:
        await made.end()


@pytest_asyncio.fixture(loop_scope="session")
async def url(postgres: Postgres) -> AsyncIterator[str]:
    async with fresh_database(postgres) as made:
        yield made


async def check_written(url: str, old: Campaigner, new: Campaigner, *terms: int) -> None:
    """Each term ended, in acts and in writes, before the next one began; these are among them."""
    database = Database(url)
    try:
        async with database.transaction() as tx:
            names = (await tx.execute(text("SELECT name FROM project WHERE name <> 'default'"))).scalars().all()
            assert (await tx.execute(text("SELECT term FROM leadership"))).scalar_one() >= max(terms)
    finally:
        await database.dispose()
    written: dict[int, list[float]] = {}
    for name in names:
        term, when = name.split()
        written.setdefault(int(term), []).append(float(when))
    assert set(terms) <= written.keys()
    for earlier, later in itertools.pairwise(sorted(written)):
        assert max(written[earlier]) < min(written[later])
    assert not old.began.keys() & new.began.keys()
    began, acted = old.began | new.began, old.acted | new.acted
    assert set(terms) <= acted.keys()
    for earlier, later in itertools.pairwise(sorted(began)):
        assert acted.get(earlier, began[earlier]) < began[later]


async def transactions_end(url: str) -> None:
    """Returns once every transaction has ended that is under way."""
    database = Database(url)
    try:
        async with database.transaction() as tx:
            moment = (await tx.execute(text("SELECT clock_timestamp()"))).scalar_one()

        async def under_way() -> int:
            async with database.transaction() as tx:
                rows = await tx.execute(
                    text("""
                        SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start < :moment
                    """),
                    {"moment": moment},
                )
                return int(rows.scalar_one())

        await eventually(under_way, (0).__eq__)
    finally:
        await database.dispose()


async def test_a_paused_leader_is_replaced_and_does_nothing_when_it_continues(url: str) -> None:
    async with campaigner(url) as old:
        before = await old.leads()
        async with campaigner(url) as new:
            old.signal(signal.SIGSTOP)
            after = await new.leads(before)
            old.signal(signal.SIGCONT)
            await old.ended(before)
            await transactions_end(url)
            await check_written(url, old, new, before, after)


async def test_a_leader_that_is_cut_off_silently_is_replaced_and_does_nothing_when_the_way_is_back(url: str) -> None:
    async with silent_proxy(url) as (proxy, by_proxy), campaigner(by_proxy) as old:
        before = await old.leads()
        async with campaigner(url) as new:
            proxy.fall_silent()
            after = await new.leads(before)
            proxy.recover()
            await old.ended(before)
            await transactions_end(url)
            await check_written(url, old, new, before, after)
            # The one that came back waits for its turn, and gets it.
            await new.end()
            await old.leads(after)


async def test_a_leader_whose_connection_is_ended_is_replaced(url: str) -> None:
    async with campaigner(url) as first:
        before = await first.leads()
        async with campaigner(url) as second:
            database = Database(url)

            async def end_connection() -> list[bool]:
                async with database.transaction() as tx:
                    ended = await tx.execute(
                        text("""
                            SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
                            WHERE a.datname = current_database() AND l.locktype = 'advisory' AND l.granted
                        """)
                    )
                    return list(ended.scalars())

            try:
                await eventually(end_connection, [True].__eq__)
            finally:
                await database.dispose()
            # Either of them, as the former leader asks for the lock again.
            leading = [asyncio.create_task(one.leads(before)) for one in (first, second)]
            done, others = await asyncio.wait(leading, return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                task.cancel()
            await first.ended(before)
            await check_written(url, first, second, before, done.pop().result())
