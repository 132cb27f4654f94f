"""The published port of an endpoint's replica: what its agent is sent, and what its agent reports of it,
in the database.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from retinue.manager.dispatch.desired_state import published_port, read_desired
from retinue.manager.domain.endpoints.model import AppProtocol
from retinue.manager.domain.endpoints.spec import EndpointSettings, ReplicaSpec, RevisionSpec
from retinue.manager.domain.session.attempts import AttemptStatus, NodeReport
from retinue.manager.domain.session.probes import Health, Probe, ProbeKind, PublishedPort, PublishedStatus
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.domain.session.spec import SessionSpec
from retinue.manager.domain.session.states import Observed, SessionType
from retinue.manager.store.endpoints import endpoint_replicas, endpoints
from tests.integration.manager.scheduled_nodes import two_nodes

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

PROBE = Probe(ProbeKind.HTTP, path="/health")


async def make_replica(database: Database, session_id: uuid.UUID) -> uuid.UUID:
    """Makes a session that is there the replica of an endpoint."""
    spec = RevisionSpec(
        SessionSpec("llm", "default", "default", SessionType.INFERENCE),
        ReplicaSpec(8000, AppProtocol.HTTP2, readiness=PROBE),
    )
    endpoint = uuid.uuid4()
    new = endpoints.NewEndpoint(endpoint, "llm", "default", "ann", "default", "llm-x", EndpointSettings(), 1, spec)
    async with database.transaction() as tx:
        assert await endpoints.create(tx, new)
        await endpoint_replicas.insert(tx, endpoint, 1, [session_id])
    return endpoint


async def test_a_replica_is_published_and_its_agents_word_reaches_the_endpoint(database: Database) -> None:
    async with two_nodes(database) as (honest, _):
        secrets = SessionSecrets(bytes(32))
        first, second = sorted((await read_desired(database, "honest", secrets)).attempts.values(), key=lambda a: a.id)
        assert not first.HasField("published")
        assert not second.HasField("published")
        session_id = uuid.UUID(first.session_id)
        endpoint = await make_replica(database, session_id)
        desired = (await read_desired(database, "honest", secrets)).attempts
        assert desired[first.id].published == published_port(PublishedPort(8000, readiness=PROBE))
        assert not desired[second.id].HasField("published")

        async def said(published: PublishedStatus | None) -> tuple[str, str, str, int]:
            statuses = [
                AttemptStatus((uuid.UUID(a.kernel_id), a.number), Observed.RUNNING, published=published)
                for a in (first, second)
            ]
            await honest.reports.reported(NodeReport("honest", tuple(statuses)))
            async with database.transaction() as tx:
                (found,) = (await endpoint_replicas.read(tx, [endpoint]))[endpoint]
            return found.health, found.health_message, found.address, found.port

        there = ("192.0.2.1", 30_001)
        assert await said(None) == ("", "", "", 0)
        assert await said(PublishedStatus(Health.STARTING, "wait", *there)) == ("STARTING", "wait", *there)
        assert await said(PublishedStatus(Health.READY, "", *there)) == ("READY", "", *there)
        # An agent that starts again says where, before it has asked.
        assert await said(PublishedStatus(None, "", *there)) == ("READY", "", *there)
        assert await said(None) == ("READY", "", *there)
