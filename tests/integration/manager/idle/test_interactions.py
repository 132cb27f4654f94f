"""What is exchanged with sessions reaches the store: coalesced, never later than the pace, the newest in the end,
from any replica.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event, text

from retinue.manager.domain.session.spec import KernelSpec, SessionSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.idle.activity import ActivityRecorder
from retinue.manager.idle.controller import IdleController
from retinue.manager.session.drafts import draft
from retinue.manager.session.submit import create_many
from retinue.manager.store.sessions import idle, sessions
from tests.integration.manager.reporting_node import TERM
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Clock:
    """A monotonic clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def make(database: Database, **policy: float) -> list[str]:
    """A session of two kernels in a group with this policy; the ids of their attempts."""
    session_id = uuid.uuid4()
    spec = SessionSpec(
        name="s", project="default", resource_group="default", type=SessionType.INTERACTIVE, cluster_size=2,
        kernel=KernelSpec(slots={"cpu": "1", "mem": "1g"}),
    )  # fmt: skip
    made = draft(session_id, "ada", spec)
    async with database.transaction() as tx:
        await create_many(tx, [made])
        stored = ", ".join(f'"{name}": {value}' for name, value in policy.items())
        statement = text("UPDATE resource_group SET idle_policy = CAST(:policy AS jsonb)")
        await tx.execute(statement, {"policy": f"{{{stored}}}"})
    return [f"{kernel.id}.1" for kernel in made.kernels]


async def age(database: Database) -> float:
    """Seconds since the last interaction that the store knows of."""
    async with database.transaction() as tx:
        row = await tx.execute(
            text("SELECT extract(epoch FROM clock_timestamp() - interaction_time)::float8 FROM session_idle")
        )
        return float(row.scalar_one())


def counted(database: Database) -> Callable[[], int]:
    """How many writes there were since."""
    written: list[str] = []
    engine = database._pool().sync_engine  # noqa: SLF001  # what is sent is reported there
    event.listen(engine, "before_cursor_execute", lambda *given: written.append(given[2]))
    return lambda: sum("INSERT INTO session_idle" in statement for statement in written)


async def test_one_write_in_a_while_and_the_newest_in_the_end(database: Database) -> None:
    main, sub = await make(database, interaction=40.0)
    clock = Clock()
    interactions = ActivityRecorder(database, clock)
    writes = counted(database)
    for _ in range(950):
        interactions.heard(main)
        interactions.heard(sub)
        clock.now += 0.02
        if clock.now % 1 < 0.02:
            await interactions.write()
    # 19 s of traffic, and a quarter of 40 s is the pace.
    assert writes() == 2
    interactions.heard(main)
    clock.now += 1
    await interactions.write()
    assert writes() == 2
    clock.now += 9.5
    # By the clock of the database no time has passed, and what it knows does not go back.
    async with database.transaction() as tx:
        await tx.execute(text("UPDATE session_idle SET interaction_time = NULL"))
    await interactions.write()
    assert writes() == 3
    assert 10.4 < await age(database) < 10.5 + NEVER
    await interactions.write(everything=True)
    assert writes() == 3, "there is nothing left"


async def test_time_never_goes_back_and_what_continues_counts(database: Database) -> None:
    main, sub = await make(database, interaction=4.0)
    clock, late_clock = Clock(), Clock()
    one, other = ActivityRecorder(database, clock), ActivityRecorder(database, late_clock)
    other.heard(sub)
    late_clock.now += 500
    one.heard(main)
    await one.write()
    await other.write()
    assert await age(database) < 400
    writes = counted(database)
    with one.hold(sub):
        for number in range(3):
            clock.now += 100
            await one.write()
            assert writes() == number + 1
    for _ in range(3):
        clock.now += 100
        await one.write()
    assert writes() == 4, "its end is written, and nothing after"


async def test_what_is_left_is_written_when_it_ends(database: Database) -> None:
    main, _ = await make(database)
    clock = Clock()
    interactions = ActivityRecorder(database, clock)
    running = asyncio.create_task(interactions.run())
    interactions.heard(main)

    async def written() -> dt.datetime | None:
        async with database.transaction() as tx:
            time: dt.datetime | None = (
                await tx.execute(text("SELECT interaction_time FROM session_idle"))
            ).scalar_one_or_none()
            return time

    before = await eventually(written)
    interactions.heard(main)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    after = await written()
    assert before is not None
    assert after is not None
    assert after > before


async def test_a_new_timeout_ends_nothing_that_may_have_been_used_just_now(database: Database) -> None:
    main, _ = await make(database)
    session_id = uuid.UUID(main.partition(".")[0])
    controller = IdleController(database, TERM, lambda _: None, lambda _: None)

    async def state_after_a_look(used_seconds_ago: float) -> str:
        async with database.transaction() as tx:
            await tx.execute(
                text("UPDATE session_idle SET interaction_time = now() - make_interval(secs => :ago)"),
                {"ago": used_seconds_ago},
            )
        await controller.look()
        async with database.transaction() as tx:
            return str((await sessions.read(tx, [session_id]))[session_id].state)

    async with database.transaction() as tx:
        await tx.execute(text("UPDATE session SET state = 'RUNNING', start_time = now() - interval '1 hour'"))
        await tx.execute(text("UPDATE kernel SET state = 'RUNNING'"))
        await idle.note_interactions(tx, {session_id: 0.0})
    await controller.look()
    async with database.transaction() as tx:
        policy = """UPDATE resource_group SET idle_policy = '{"interaction": 4.0, "warning": 0.0}'"""
        await tx.execute(text(policy))
    assert await state_after_a_look(10.0) == "RUNNING"
    assert await state_after_a_look(60.0) == "TERMINATED"
