"""What an agent runs and a restored database does not know is recorded, and ends by name only."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.dispatch.desired_state import read_desired
from retinue.manager.dispatch.orphans import Orphans
from retinue.manager.domain.session.attempts import AttemptStatus, NodeReport
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.domain.session.states import Observed
from retinue.manager.store.placement import orphans
from retinue.manager.store.postgres import cluster
from tests.integration.manager.leading import FakeAgent, count, leading
from tests.integration.manager.reporting_node import TERM, enrol
from tests.integration.manager.rows import submit
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

SESSION, KERNEL, OTHER = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()


def report(kernel_id: uuid.UUID, epoch: int = 1, state: Observed = Observed.RUNNING) -> AttemptStatus:
    return AttemptStatus((kernel_id, epoch), state, None, "", "", 0, session_id=SESSION)


async def blocked(database: Database, agent_id: str) -> bool:
    async with database.transaction() as tx:
        row = await tx.execute(text("SELECT blocked FROM agent WHERE id = :id"), {"id": agent_id})
        return bool(row.scalar_one())


async def add_attempt(database: Database, agent_id: str, kernel_id: uuid.UUID, *, ended: bool) -> None:
    async with database.transaction() as tx:
        await tx.execute(
            text("""
                INSERT INTO attempt (kernel_id, epoch, session_id, agent_id, goal, observed, term, log_pending, end_time)
                VALUES (:kernel, 1, :session, :agent, 'RUNNING', 'RUNNING', 1, FALSE, CASE WHEN :ended THEN now() END)
            """),
            {"kernel": kernel_id, "session": SESSION, "agent": agent_id, "ended": ended},
        )


async def test_the_unknown_is_recorded_and_what_has_ended_is_named(database: Database) -> None:
    await enrol(database, ["one", "two"])
    await add_attempt(database, "one", KERNEL, ended=True)
    elsewhere = uuid.uuid4()
    await add_attempt(database, "two", elsewhere, ended=False)
    controller = Orphans(database, TERM, lambda _affected: None)
    ended_unknown = uuid.uuid4()
    reports = [report(KERNEL), report(OTHER), report(elsewhere), report(ended_unknown, state=Observed.EXITED)]
    removed = await controller.removable("one", reports)
    assert set(removed) == {f"{KERNEL}.1", f"{elsewhere}.1"}
    async with database.transaction() as tx:
        found = await orphans.list_page(tx, "", None, 10)
    assert [(one.agent_id, one.kernel_id, one.session_id, one.end_requested) for one in found] == [
        ("one", OTHER, SESSION, False)
    ]
    assert await blocked(database, "one")
    assert not await blocked(database, "two")

    await controller.reported(NodeReport("one", (report(OTHER, state=Observed.EXITED),)))
    assert not await blocked(database, "one")
    async with database.transaction() as tx:
        assert await orphans.list_page(tx, "", None, 10) == []


async def test_an_orphan_ends_when_that_is_requested(database: Database) -> None:
    await enrol(database, ["one"])
    controller = Orphans(database, TERM, lambda _affected: None)
    assert not await controller.removable("one", [report(OTHER), report(KERNEL)])
    async with database.transaction() as tx:
        assert await orphans.request_end(tx, "one", [(OTHER, 1), (uuid.uuid4(), 1)]) == [(OTHER, 1)]
    desired = await read_desired(database, "one", SessionSecrets(bytes(32)))
    assert desired.removed == {f"{OTHER}.1"}
    # The agent was away when it was sent.
    assert set(await controller.removable("one", [report(OTHER), report(KERNEL)])) == {f"{OTHER}.1"}


@pytest.mark.parametrize("restored", [False, True])
async def test_an_agent_keeps_no_session_of_others_from_being_placed(database: Database, restored: bool) -> None:
    """Unless the database was restored: then the session may run there."""
    session_id = await submit(database, "ann", "one", agents=("honest",), agents_strict=True)
    if restored:
        async with database.transaction() as tx:
            await cluster.begin_incarnation(tx)
    rogue = FakeAgent("rogue")
    forged = f"{uuid.uuid4()}.1"
    rogue.statuses[forged] = agent_pb.AttemptStatus(
        attempt_id=forged, session_id=str(session_id), state=agent_pb.ATTEMPT_STATE_RUNNING
    )

    async def recorded() -> bool:
        async with database.transaction() as tx:
            return len(await orphans.list_page(tx, "rogue", None, 10)) == 1

    async with leading(database, rogue):
        await eventually(recorded)
    async with leading(database, rogue, FakeAgent("honest")):
        await submit(database, "ann", "two", agents=("honest",), agents_strict=True)
        await eventually(lambda: _runs(database, "two"))
        if restored:
            assert not await _runs(database, "one")
        else:
            await eventually(lambda: _runs(database, "one"))


async def _runs(database: Database, name: str) -> bool:
    return await count(database, "name = :name AND state = 'RUNNING'", name=name) == 1


async def test_agents_are_waited_for_after_a_restore_only(database: Database) -> None:
    await enrol(database, ["one", "two"])
    async with database.transaction() as tx:
        assert await orphans.read_unreported(tx) == []
        before = (await cluster.read(tx)).incarnation
        assert await cluster.begin_incarnation(tx) != before
        assert await orphans.read_unreported(tx) == ["one", "two"]
    controller = Orphans(database, TERM, lambda _affected: None)
    await controller.removable("one", [])
    async with database.transaction() as tx:
        assert await orphans.read_unreported(tx) == ["two"]
    await controller.wait_until_reported(0.0)
    await controller.removable("two", [])
    await controller.wait_until_reported(3600.0)
