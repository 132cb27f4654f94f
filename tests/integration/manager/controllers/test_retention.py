"""Sessions that ended long ago are removed with all that belongs to them; others stay."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.controllers.leader import Leader
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.domain.session.spec import KernelSpec, SessionSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.session.drafts import draft
from retinue.manager.session.submit import create_many
from retinue.manager.store import retention
from retinue.manager.store.journal.journal_tail import JournalTail
from tests.integration.manager.leading import PATIENT, PlainDialer
from tests.integration.manager.reporting_node import TERM
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")

MONTH = dt.timedelta(days=30)


async def ended(database: Database, name: str, days: float, *, log_pending: bool = False) -> None:
    """A session of two kernels that ended so many days ago, with an attempt, a released claim and output of each."""
    spec = SessionSpec(
        name=name,
        project="default",
        resource_group="default",
        type=SessionType.BATCH,
        cluster_size=2,
        kernel=KernelSpec(command=("true",), slots={"cpu": "1", "mem": "64m"}),
    )
    made = draft(uuid.uuid4(), "ada", spec)
    async with database.transaction() as tx:
        await create_many(tx, [made])
        for kernel in made.kernels:
            values = {"kernel": kernel.id, "session": made.session.id, "pending": log_pending}
            for statement in (
                "INSERT INTO attempt (kernel_id, epoch, session_id, agent_id, goal, observed, term, log_pending, end_time)"
                " VALUES (:kernel, 1, :session, 'n1', 'STOPPED', 'EXITED', 1, :pending, now())",
                "INSERT INTO claim (kernel_id, epoch, slot, agent_id, resource_group, owner, amount, release_time)"
                " VALUES (:kernel, 1, 'cpu', 'n1', 'default', 'ada', 1000, now())",
                "INSERT INTO kernel_log (kernel_id, epoch, start_offset, data) VALUES (:kernel, 1, 0, 'hello')",
            ):
                await tx.execute(text(statement), values)
        await tx.execute(
            text(
                "UPDATE session SET state = 'TERMINATED', end_time = now() - make_interval(secs => :age) WHERE id = :id"
            ),
            {"id": made.session.id, "age": 86_400.0 * days},
        )


async def names(database: Database) -> list[str]:
    async with database.transaction() as tx:
        return list((await tx.execute(text("SELECT name FROM session ORDER BY name"))).scalars())


async def counts(database: Database) -> list[int]:
    """Rows that belong to sessions: kernels, attempts, claims, outputs."""
    async with database.transaction() as tx:
        return [
            (await tx.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()  # noqa: S608
            for table in ("kernel", "attempt", "claim", "kernel_log")
        ]


async def test_in_portions_outputs_first(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_OUTPUT_PORTION", 3)
    monkeypatch.setattr(retention, "_SESSION_PORTION", 2)
    for number in range(3):
        await ended(database, f"old{number}", 31 + number)
    await ended(database, "recent", 29)
    await ended(database, "unfetched", 40, log_pending=True)

    async def purge(purged: str) -> int:
        async with database.transaction() as tx:
            return await {"outputs": retention.purge_outputs, "sessions": retention.purge_sessions}[purged](tx, MONTH)

    assert [await purge("outputs") for _ in range(3)] == [3, 3, 0]
    assert await counts(database) == [10, 10, 10, 4]
    assert await purge("sessions") == 2
    assert await names(database) == ["old0", "recent", "unfetched"]
    assert [await purge("sessions") for _ in range(2)] == [1, 0]
    assert await names(database) == ["recent", "unfetched"]
    assert await counts(database) == [4, 4, 4, 4]


@pytest.mark.parametrize(("kept", "left"), [(MONTH, ["recent"]), (None, ["old", "recent"])])
async def test_the_leader_removes_them(database: Database, kept: dt.timedelta | None, left: list[str]) -> None:
    await ended(database, "old", 31)
    await ended(database, "recent", 29)
    tail = JournalTail(database)
    leader = Leader(
        database, tail, PlainDialer(), PATIENT, str(uuid.uuid4()), TERM, SessionSecrets(bytes(32)), kept=kept
    )
    # A used-up join token goes in the same round.
    async with database.transaction() as tx:
        await tx.execute(
            text(
                "INSERT INTO join_token (hash, resource_group, uses_left, expire_time)"
                " VALUES ('x', 'default', 0, now() - interval '1 day')"
            )
        )
    running = [asyncio.create_task(work) for work in (tail.run(), leader.run())]
    try:
        await eventually(lambda: names(database), lambda found: found == left)
        await eventually(lambda: join_tokens(database), lambda found: not found)
    finally:
        for task in running:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def join_tokens(database: Database) -> int:
    async with database.transaction() as tx:
        return int((await tx.execute(text("SELECT count(*) FROM join_token"))).scalar_one())
