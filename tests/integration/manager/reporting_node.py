"""A real database with nothing in it, and nodes that follow the protocol without running anything."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch import agent_values as values
from retinue.manager.dispatch.desired_state import read_desired
from retinue.manager.domain.session.attempts import AttemptStatus, NodeCondition, NodeFacts, NodeReport
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.domain.session.states import ENDED_OBSERVATIONS, Observed
from retinue.manager.store.postgres import connections
from retinue.manager.store.postgres.database import Database
from tests.support.databases import Postgres, fresh_database
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.manager.dispatch.reports import Reports

TERM = 1


@pytest.fixture
async def database(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    # As in conftest.py: no test repeats what was refused while connections begin.
    monkeypatch.setattr(connections, "POOL_SECONDS", NEVER)
    async with fresh_database(postgres) as url:
        database = Database(url)
        try:
            async with database.transaction() as tx:
                await tx.execute(text("UPDATE leadership SET term = :term"), {"term": TERM})
            yield database
        finally:
            await database.dispose()


class Node:
    """A node that does what is asked, one step of an attempt at a time, and reports it."""

    def __init__(self, name: str, reports: Reports, database: Database, capacity: dict[str, int]) -> None:
        self.name = name
        self.instance = "i"
        self.capacity = capacity
        self.backends: tuple[str, ...] = ("process",)
        self.attempts: dict[str, AttemptStatus] = {}
        self.networks: set[str] = set()
        self.conditions: tuple[NodeCondition, ...] = ()
        self.reports = reports
        self._database = database

    async def join(self) -> None:
        """Opens a stream: reports all there is."""
        facts = NodeFacts(
            agent_id=self.name,
            instance=self.instance,
            boot_id="b",
            version="1",
            architecture="x86_64",
            # As one that says nothing of its disk is taken.
            capacity=values.capacity(self.capacity),
            backends=self.backends,
            underlay_address="192.0.2.1",
            underlay_mtu=1500,
            attempts=tuple(self.attempts.values()),
            network_session_ids=frozenset(map(uuid.UUID, self.networks)),
            conditions=self.conditions,
        )
        await self.reports.connected(facts)

    async def change_conditions(self, *conditions: NodeCondition) -> None:
        """Something is wrong with the node from now on, or nothing."""
        self.conditions = conditions
        await self.reports.conditions_changed(self.name, conditions)

    async def step(self, *, fail: bool = False, exit_code: int | None = None) -> bool:
        """Takes every attempt one step further towards what is wanted; returns whether anything changed."""
        desired = await read_desired(self._database, self.name, SessionSecrets(bytes(32)))
        reported: list[AttemptStatus] = []
        self.networks |= set(desired.networks)
        for attempt in desired.attempts.values():
            before = self.attempts.get(attempt.id)
            state, code, reason = (
                (before.state, before.exit_code, before.reason) if before else (Observed.UNKNOWN, None, "")
            )
            if state in ENDED_OBSERVATIONS:
                continue
            if attempt.goal == pb.GOAL_STOPPED:
                state, code, reason = Observed.EXITED, 143 if state is Observed.RUNNING else None, "STOPPED"
            elif not state:
                state = Observed.CREATING
            elif state is Observed.CREATING:
                state, reason = (Observed.FAILED, "START_FAILED") if fail else (Observed.HELD, "")
            elif state is Observed.HELD and attempt.goal == pb.GOAL_RUNNING:
                state = Observed.RUNNING
            elif state is Observed.RUNNING and exit_code is not None:
                state, code, reason = Observed.EXITED, exit_code, "EXITED"
            now = AttemptStatus((uuid.UUID(attempt.kernel_id), attempt.number), state, code, reason, "", 0)
            if now != before:
                self.attempts[attempt.id] = now
                reported.append(now)
        gone = tuple(name for name in self.attempts if name not in desired.attempts)
        for name in gone:
            del self.attempts[name]
        removed = tuple(name for name in self.networks if name not in desired.networks)
        self.networks -= set(removed)
        if not (reported or gone or removed):
            return False
        await self.reports.reported(
            NodeReport(self.name, tuple(reported), removed_networks=frozenset(map(uuid.UUID, removed)))
        )
        return True


async def enrol(database: Database, names: list[str]) -> None:
    """Agents that are known and have not been heard of."""
    async with database.transaction() as tx:
        for name in names:
            await tx.execute(
                text("""
                    INSERT INTO agent (id, resource_group, state, drained, revoked, address, instance, architecture, software_version,
                        underlay_address, underlay_mtu, boot_id, version)
                    VALUES (:name, 'default', 'JOINING', FALSE, FALSE, 'x:1', '', '', '', '', 0, '', 1)
                """),
                {"name": name},
            )
