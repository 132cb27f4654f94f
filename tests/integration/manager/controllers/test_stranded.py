"""From every combination of agent, revocation and session some controller acts:
what is stored is read by its query, and ends.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from retinue.manager.controllers import deadlines
from retinue.manager.dispatch.reports import Reports
from retinue.manager.domain import errors
from retinue.manager.domain.scheduling.records import AgentState
from retinue.manager.domain.session.admission import admit
from retinue.manager.domain.session.attempts import ListenerBrokenError
from retinue.manager.domain.session.spec import KernelSpec, RetryPolicy, SessionSpec
from retinue.manager.domain.session.states import Goal, SessionState, SessionType
from retinue.manager.identity.tokens import JOIN_TOKEN_PREFIX, hash_secret, new_secret
from retinue.manager.session.drafts import draft
from retinue.manager.session.submit import create_many
from retinue.manager.session.transaction import load_for_update, save, terminate
from retinue.manager.store.fleet import agents, nodes
from retinue.manager.store.placement import deadlines as store_deadlines
from retinue.manager.store.placement import ledger
from retinue.manager.store.postgres.recordset import fetched
from retinue.manager.store.sessions import conditions
from tests.integration.manager.reporting_node import TERM, Node, enrol
from tests.integration.manager.scheduler.world import check_claims
from tests.support.controllers import Controller, Link, controller_of
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.manager.store.postgres.database import Database

STATES = ("JOINING", "ALIVE", "SUSPECT", "LOST")
AGENTS = {
    f"{state.lower()}-{'revoked' if revoked else 'enrolled'}": (state, revoked)
    for state, revoked in itertools.product(STATES, (False, True))
}
RETRY = RetryPolicy(3)


class World:
    """One node of each kind, and sessions at every stage on each."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.reports = Reports(database, TERM, lambda _: None)
        self.scheduler = SteppedScheduler(database, TERM, lambda _: None)
        self.nodes = [Node(name, self.reports, database, {"cpu": 64000, "mem": 64 << 30}) for name in AGENTS]

    async def submit(self, stage: str, retry: RetryPolicy | None = None) -> list[uuid.UUID]:
        """A session on each node, placed there."""
        made = []
        for name in AGENTS:
            spec, violations = admit(
                SessionSpec(
                    name=f"{stage}-{name}",
                    project="default",
                    resource_group="default",
                    type=SessionType.BATCH,
                    kernel=KernelSpec(command=("x",), slots={"cpu": "1", "mem": "256m"}),
                    agents=(name,),
                    agents_strict=True,
                    retry=retry,
                )
            )
            assert not violations
            one = draft(uuid.uuid4(), "ann", spec)
            async with self.database.transaction() as tx:
                await create_many(tx, [one])
            made.append(one.session.id)
        await self.scheduler.run_once()
        return made

    async def step(self, times: int) -> None:
        for _ in range(times):
            for node in self.nodes:
                await node.step()

    async def roll_back(self, session_ids: list[uuid.UUID]) -> None:
        async with self.database.transaction() as tx:
            taken = await load_for_update(tx, session_ids)
            for machine in taken.machines.values():
                machine.roll_back("TEST")
            await save(tx, taken)

    async def terminate(self, session_ids: list[uuid.UUID], *, force: bool = False) -> None:
        for session_id in session_ids:
            async with self.database.transaction() as tx:
                await terminate(tx, session_id, by="test", force=force)

    async def prepare(self) -> None:
        """Sessions at every stage, and the nodes as they are called."""
        await enrol(self.database, list(AGENTS))
        for node in self.nodes:
            await node.join()
        await self.submit("running")
        await self.submit("retried", RETRY)
        stopping = await self.submit("stopping")
        await self.step(3)
        requeued = await self.submit("requeued")
        await self.submit("preparing")
        await self.step(1)
        await self.terminate(stopping)
        await self.roll_back(requeued)
        await self.submit("scheduled")
        await self.terminate(await self.submit("cancelled"))
        async with self.database.transaction() as tx:
            for name, (state, revoked) in AGENTS.items():
                values = {"id": name, "state": state, "revoked": revoked}
                await tx.execute(text("UPDATE agent SET state = :state, revoked = :revoked WHERE id = :id"), values)

    async def live(self) -> dict[tuple[uuid.UUID, int], Mapping[str, Any]]:
        async with self.database.transaction() as tx:
            rows = await tx.execute(
                text("""
                    SELECT a.kernel_id, a.epoch, a.agent_id, a.goal, s.id, s.name, s.state, s.spec->'retry' AS retry,
                        g.state AS agent_state, g.revoked
                    FROM attempt a JOIN session s ON s.id = a.session_id JOIN agent g ON g.id = a.agent_id WHERE a.end_time IS NULL
                """)
            )
            return {(row["kernel_id"], row["epoch"]): row for row in fetched(rows)}

    async def enforce(self) -> None:
        await deadlines.enforce(self.database, TERM, lambda _: None)


def controller(row: Mapping[str, Any]) -> Controller:
    """Who acts on an attempt of an agent that is not heard."""
    return controller_of(
        row["agent_state"],
        revoked=row["revoked"],
        link=Link.NONE,
        session=SessionState(row["state"]),
        goal=Goal(row["goal"]),
        may_retry=row["retry"] is not None,
    )


async def test_every_stranded_combination_is_acted_on(database: Database) -> None:
    world = World(database)
    running = asyncio.create_task(world.reports.run())
    try:
        await world.prepare()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    before = await world.live()
    stages = {row["name"].partition("-")[0] for row in before.values()}
    assert stages == {"running", "retried", "stopping", "requeued", "preparing", "scheduled", "cancelled"}
    assert len(before) == len(stages) * len(AGENTS)
    async with database.transaction() as tx:
        overdue = {(item.kernel_id, item.epoch) for item in await store_deadlines.read_overdue(tx)}
        judged = set(await nodes.read_targets(tx))
    for key, row in before.items():
        acts = controller(row)
        assert (key in overdue) == (acts is Controller.STRANDED), row
        assert acts is Controller.STRANDED or row["agent_id"] in judged, row
    await world.enforce()
    left = await world.live()
    assert left.keys() == before.keys() - overdue
    # No agent is heard: silence makes the others lost too.
    for name in judged:
        await world.reports.liveness_changed(name, AgentState.LOST, None)
    await world.enforce()
    left = await world.live()
    assert {row["name"] for row in left.values()} == {
        f"running-{name}" for name, (_, revoked) in AGENTS.items() if not revoked
    }
    assert {controller(row) for row in left.values()} == {Controller.RETURN}
    await world.terminate([row["id"] for row in left.values()], force=True)
    await world.enforce()
    assert await world.live() == {}
    await check_claims(database)
    async with database.transaction() as tx:
        await ledger.freeze(tx)
        assert not (await ledger.verify(tx, "")).mismatches
        open_ones = await tx.execute(
            text("SELECT name, state FROM session WHERE state NOT IN ('TERMINATED', 'CANCELLED')")
        )
        assert {row.state for row in open_ones} == {"PENDING"}


async def test_a_revoked_node_comes_back_only_once_what_it_ran_is_given_up(database: Database) -> None:
    world = World(database)
    name = next(iter(AGENTS))
    await enrol(database, list(AGENTS))
    for node in world.nodes:
        await node.join()
    await world.submit("scheduled")
    hashed = hash_secret(new_secret(JOIN_TOKEN_PREFIX))
    async with database.transaction() as tx:
        assert await agents.revoke(tx, name)
        await agents.create_join_token(tx, hashed, group="default", agent_id=name, uses=1, ttl=dt.timedelta(minutes=1))
    with pytest.raises(errors.AgentIdInUse, match="not given up yet"):
        async with database.transaction() as tx:
            await agents.enrol(tx, hashed, name)
    await world.reports.liveness_changed(name, AgentState.LOST, None)
    async with database.transaction() as tx:
        await agents.enrol(tx, hashed, name)


async def test_when_an_agent_was_heard_is_kept(database: Database) -> None:
    await enrol(database, ["heard", "silent", "lost"])
    async with database.transaction() as tx:
        await tx.execute(text("UPDATE agent SET state = 'ALIVE', heartbeat_time = now() - interval '2 hours'"))
        await nodes.record_state(tx, "lost", AgentState.LOST, None)
        # The term before heard all that were alive, and ended.
        ended = await tx.execute(text("SELECT now() - interval '1 hour'"))
        await nodes.keep_heard(tx, ended.scalar_one())
        for name, silence in (("heard", 7.0), ("silent", None)):
            await nodes.record_state(tx, name, AgentState.LOST, silence)
        rows = await tx.execute(text("SELECT id, extract(epoch FROM now() - heartbeat_time)::int AS ago FROM agent"))
        # That nothing was heard in this term does not make it the term's beginning.
        assert {row.id: row.ago for row in rows} == {"heard": 7, "silent": 3600, "lost": 7200}


@pytest.mark.parametrize("state", [*STATES, "revoked"])
async def test_the_welcome_of_a_copy_changes_nothing(database: Database, state: str) -> None:
    world = World(database)
    running = asyncio.create_task(world.reports.run())
    try:
        await enrol(database, list(AGENTS))
        for node in world.nodes:
            await node.join()
        await world.submit("running")
        await world.step(3)
        first, before = world.nodes[0], await world.live()
        async with database.transaction() as tx:
            if state == "revoked":
                assert await agents.revoke(tx, first.name)
            else:
                await nodes.record_state(tx, first.name, AgentState.of(state), None)
            stored = await agents.get(tx, first.name)
        copy = Node(first.name, world.reports, database, first.capacity)
        copy.instance = first.instance if state == "revoked" else "a copy"
        with pytest.raises(ListenerBrokenError, match="a copy of it"):
            await copy.join()
        assert (await world.live()).keys() == before.keys()
        async with database.transaction() as tx:
            assert (await agents.get(tx, first.name)) == stored
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.attack("revoked-nodes")
async def test_sessions_of_a_revoked_agent_say_so_at_once(database: Database) -> None:
    world = World(database)
    running = asyncio.create_task(world.reports.run())
    try:
        await enrol(database, list(AGENTS))
        for node in world.nodes:
            await node.join()
        sessions = await world.submit("running")
        await world.step(3)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    name = next(iter(AGENTS))
    async with database.transaction() as tx:
        assert await agents.revoke(tx, name)
    async with database.transaction() as tx:
        await conditions.set_agent_lost(tx, name, lost=True)
    async with database.transaction() as tx:
        rows = await tx.execute(text("SELECT id, conditions FROM session WHERE conditions <> '[]'"))
        found = {row.id: row.conditions for row in rows}
    assert found.keys() == {sessions[0]}
    assert f"agent {name} was revoked" in found[sessions[0]][0]["message"]
