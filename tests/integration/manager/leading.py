"""A leader on a real database, and agents that are only the protocol: one that does as it should,
and others that do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from sqlalchemy import text

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.agent_rpc.dialer import Dialer
from retinue.manager.controllers.leader import Leader
from retinue.manager.domain.agents.timers import Timers
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.store.journal.journal_tail import JournalTail
from tests.integration.manager.reporting_node import TERM
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

GIB = 2**30
SERVICE = pb.DESCRIPTOR.services_by_name["AgentService"].full_name
# No agent is given up while it runs, however busy the machine is: none of these answers heartbeats.
PATIENT = Timers(suspect_after=NEVER, lost_after=2 * NEVER)
# What one process of an agent says once it was dialled, after the manager's hello.
Script = Callable[["FakeAgent", AsyncIterator[pb.SyncRequest]], AsyncIterator[pb.SyncResponse]]


class PlainDialer(Dialer):
    """Dials without TLS."""

    def __init__(self) -> None:
        super().__init__(grpc.ssl_channel_credentials)

    def open(self, agent_id: str, address: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))


class FakeAgent:
    """An agent that runs nothing. `dialled` counts its streams."""

    def __init__(self, name: str, script: Script | None = None) -> None:
        self.name = name
        self.dialled = 0
        self.address = ""
        self.statuses: dict[str, pb.AttemptStatus] = {}
        self.wanted: dict[str, pb.Attempt] = {}
        # What it was to end by name.
        self.removed: set[str] = set()
        self._script = script or behave

    async def sync(self, requests: AsyncIterator[pb.SyncRequest], _context: Any) -> AsyncIterator[pb.SyncResponse]:
        """One stream."""
        await anext(requests)
        self.dialled += 1
        async for response in self._script(self, requests):
            yield response

    def welcome(self, **changes: Any) -> pb.SyncResponse:
        """What it begins with."""
        facts: dict[str, Any] = {
            "agent_id": self.name,
            "instance": "i",
            "version": "1",
            "architecture": "x86_64",
            "capacity": {"cpu": 64_000, "mem": 64 * GIB},
            "available_runtimes": ["process"],
            "underlay_address": "192.0.2.1",
            "underlay_mtu": 1500,
            "attempts": self.statuses.values(),
        }
        return pb.SyncResponse(welcome=pb.Welcome(**{**facts, **changes}))


async def behave(agent: FakeAgent, requests: AsyncIterator[pb.SyncRequest]) -> AsyncIterator[pb.SyncResponse]:
    """Does as the manager wants, at once."""
    yield agent.welcome()
    sequence = 0
    async for request in requests:
        step = request.WhichOneof("step")
        if step == "snapshot":
            agent.wanted = {attempt.id: attempt for attempt in request.snapshot.attempts}
            agent.removed.update(request.snapshot.removed_attempt_ids)
        elif step == "change":
            agent.wanted |= {attempt.id: attempt for attempt in request.change.attempts}
            agent.removed.update(request.change.removed_attempt_ids)
            for attempt_id in request.change.removed_attempt_ids:
                agent.wanted.pop(attempt_id, None)
                agent.statuses.pop(attempt_id, None)
        if changed := list(_advanced(agent)):
            sequence += 1
            yield pb.SyncResponse(report=pb.Report(sequence=sequence, attempts=changed))


def _advanced(agent: FakeAgent) -> Iterable[pb.AttemptStatus]:
    states = {
        pb.GOAL_HELD: pb.ATTEMPT_STATE_HELD,
        pb.GOAL_RUNNING: pb.ATTEMPT_STATE_RUNNING,
        pb.GOAL_STOPPED: pb.ATTEMPT_STATE_EXITED,
    }
    for attempt in agent.wanted.values():
        status = pb.AttemptStatus(attempt_id=attempt.id, state=states[attempt.goal])
        if agent.statuses.get(attempt.id) != status:
            agent.statuses[attempt.id] = status
            yield status


@contextlib.asynccontextmanager
async def serving(*agents: FakeAgent) -> AsyncIterator[None]:
    """The agents listen."""
    servers = []
    try:
        for agent in agents:
            server = grpc.aio.server()
            handler = grpc.stream_stream_rpc_method_handler(
                agent.sync, pb.SyncRequest.FromString, pb.SyncResponse.SerializeToString
            )
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Sync": handler}),))
            agent.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            servers.append(server)
        yield
    finally:
        for server in servers:
            await server.stop(None)


@contextlib.asynccontextmanager
async def leading(database: Database, *agents: FakeAgent) -> AsyncIterator[asyncio.Task[None]]:
    """A leader of agents that are enrolled if need be, and listen; its term must last."""
    async with serving(*agents):
        async with database.transaction() as tx:
            for agent in agents:
                await tx.execute(
                    text("""
                        INSERT INTO agent (id, resource_group, state, drained, revoked, address, instance, architecture, software_version,
                            underlay_address, underlay_mtu, boot_id, version)
                        VALUES (:name, 'default', 'JOINING', FALSE, FALSE, :address, '', '', '', '', 0, '', 1)
                        ON CONFLICT (id) DO UPDATE SET address = excluded.address
                    """),
                    {"name": agent.name, "address": agent.address},
                )
        tail = JournalTail(database)
        leader = Leader(database, tail, PlainDialer(), PATIENT, str(uuid.uuid4()), TERM, SessionSecrets(bytes(32)))
        tasks = [asyncio.create_task(tail.run()), asyncio.create_task(leader.run())]
        try:
            yield tasks[1]
            assert not tasks[1].done(), tasks[1].exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def count(database: Database, condition: str, **values: Any) -> int:
    """How many sessions there are of which a condition holds."""
    async with database.transaction() as tx:
        found = await tx.execute(text(f"SELECT count(*) FROM session WHERE {condition}"), values)  # noqa: S608  # ours
        number: int = found.scalar_one()
        return number


def random_id() -> str:
    """The id of nothing."""
    return str(uuid.uuid4())
