"""The leader's edge with a real router: enrolment, the table, tokens and their revocation, acknowledgements,
traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import os
import signal
import sys
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from grpc import StatusCode as Code
from sqlalchemy import text

from retinue.devtools.cluster import free_ports
from retinue.manager.daemon import agent_dialer
from retinue.manager.domain.endpoints.model import (
    AccessMode,
    AccessPolicy,
    RoutedEndpoint,
    RoutedReplica,
    RoutedRevision,
    RoutingPolicy,
)
from retinue.manager.domain.endpoints.states import ReplicaState
from retinue.manager.endpoints.routers.edge import RouterEdge
from retinue.manager.identity.endpoint_tokens import EndpointDomain, EndpointTokenSigner
from retinue.manager.identity.tokens import JOIN_TOKEN_PREFIX, hash_secret, new_secret
from retinue.manager.store.endpoints import endpoint_tokens
from retinue.manager.store.fleet import agents, routers
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1 import fleet_service_pb2_grpc
from tests.integration.manager.rig import Service, bearer, failure
from tests.integration.router.backends import Backend
from tests.integration.router.clients import request
from tests.integration.router.running import until_connected
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_scope="session")
INCARNATION = str(uuid.UUID(int=1))


@dataclass
class Edged:
    edge: RouterEdge
    service: Service
    signer: EndpointTokenSigner
    port: int
    wakes: list[None]
    process: asyncio.subprocess.Process
    running: asyncio.Task[None]

    async def token(self, endpoint: RoutedEndpoint) -> tuple[uuid.UUID, str]:
        async with self.service.database.transaction() as tx:
            found = await endpoint_tokens.create(
                tx, endpoint.id, label="test", creator="root", ttl=dt.timedelta(hours=1)
            )
        secret = self.signer.sign(endpoint.id, found.id, now=dt.datetime.now(dt.UTC), expire_time=found.expire_time)
        return found.id, secret

    async def acknowledged(self, revision: int) -> None:
        await eventually(lambda: self.edge.traffic().live == 1 and self.edge.traffic().acknowledged >= revision)


@pytest_asyncio.fixture(loop_scope="session")
async def edged(service: Service, tmp_path: Path) -> AsyncIterator[Edged]:
    secret = new_secret(JOIN_TOKEN_PREFIX)
    async with service.database.transaction() as tx:
        await agents.create_join_token(
            tx,
            hash_secret(secret),
            kind="ROUTER",
            group="default",
            agent_id=None,
            uses=1,
            ttl=dt.timedelta(minutes=5),
        )
    directory, port = tmp_path / "router", free_ports()[0]
    arguments = ["--id", "r1", "--data-dir", str(directory), "--manager", service.endpoint, "--plain-http"]
    arguments += ["--join-token", secret, "--ca-fingerprint", service.authority.fingerprint]
    arguments += ["--listen", "127.0.0.1:0", "--clients", f"127.0.0.1:{port}", "--stop-engine"]
    dialer = agent_dialer(service.authority)
    wakes: list[None] = []
    domain = EndpointDomain.make(service.authority, "edge.test")
    edge = RouterEdge(
        service.database, dialer, INCARNATION, 1, domain, moved=lambda: wakes.append(None), check_lease=_good
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "retinue.router.main", "run", *arguments)
    running = asyncio.create_task(edge.run())
    try:
        yield Edged(edge, service, EndpointTokenSigner(service.authority), port, wakes, process, running)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await dialer.close()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
        with contextlib.suppress(OSError, ValueError):
            os.kill(json.loads((directory / "engine.json").read_text())["pid"], signal.SIGKILL)


def _good() -> None:
    """The lease holds."""


def toy(*ports: int, state: ReplicaState = ReplicaState.READY, mode: AccessMode = AccessMode.PUBLIC) -> RoutedEndpoint:
    replicas = tuple(RoutedReplica(uuid.UUID(int=port), "127.0.0.1", port, state) for port in ports)
    return RoutedEndpoint(
        uuid.uuid4(),
        "p",
        "toy",
        "toy-1",
        routing=RoutingPolicy(idle_timeout_ms=30_000),
        access=AccessPolicy(mode=mode),
        revisions=(RoutedRevision(1, 100 if ports else 0, replicas=replicas),),
        gate=not ports,
    )


async def counted(edged: Edged, endpoint: RoutedEndpoint, condition: Callable[[int], bool]) -> None:
    def check() -> bool:
        found = edged.edge.traffic().endpoints.get(endpoint.id)
        return found is not None and 1 in found.revisions and condition(found.revisions[1].requests)

    await eventually(check)


async def test_what_is_published_is_served_acknowledged_and_counted(edged: Edged) -> None:
    async with Backend("a") as backend:
        asleep = toy()
        revision = edged.edge.publish([asleep])
        assert edged.edge.publish([asleep]) == revision
        await edged.acknowledged(revision)
        await until_connected(edged.port)
        before = len(edged.wakes)
        call = asyncio.create_task(request(edged.port, "toy-1.edge.test"))
        await eventually(
            lambda: (found := edged.edge.traffic().endpoints.get(asleep.id)) is not None and found.held == 1
        )
        assert len(edged.wakes) > before

        awake = replace(toy(backend.port), id=asleep.id)
        revision = edged.edge.publish([awake])
        assert (await call).status == 200
        await edged.acknowledged(revision)
        await counted(edged, asleep, lambda requests: requests == 1)
        assert (edged.edge.traffic().live, edged.edge.traffic().missing) == (1, 0)

        session = uuid.UUID(int=backend.port)
        await edged.acknowledged(edged.edge.publish([replace(awake, gate=True)]))
        await eventually(lambda: edged.edge.traffic().draining == {session: 0})


async def test_a_router_that_breaks_off_is_waited_for_and_ends_no_link(
    edged: Edged, caplog: pytest.LogCaptureFixture
) -> None:
    await edged.acknowledged(edged.edge.publish([toy()]))
    caplog.set_level("INFO")
    edged.process.kill()
    await edged.process.wait()
    await eventually(lambda: "link to router r1" in caplog.text or edged.running.done())
    assert not edged.running.done()
    # What is on its engine is not over, for all that is known.
    assert edged.edge.traffic().live == 1


async def test_a_token_passes_until_it_is_revoked(edged: Edged) -> None:
    async with Backend("a") as backend:
        endpoint = toy(backend.port, mode=AccessMode.TOKEN)
        await edged.acknowledged(edged.edge.publish([endpoint]))
        await until_connected(edged.port)
        token_id, secret = await edged.token(endpoint)
        _, other = await edged.token(endpoint)

        async def status(token: str) -> int:
            return (await request(edged.port, "toy-1.edge.test", authorization=f"Bearer {token}")).status

        assert (await request(edged.port, "toy-1.edge.test")).status == 401
        assert await status(secret) == 200
        async with edged.service.database.transaction() as tx:
            assert await endpoint_tokens.revoke(tx, endpoint.id, token_id) is not None
        edged.edge.refresh()
        await eventually(lambda: status(secret), (403).__eq__)
        assert await status(other) == 200
        assert not any("authorization" in headers for headers in backend.headers)


async def test_a_revoked_router_gets_no_table_any_more_and_reaches_no_replica(edged: Edged) -> None:
    admin = bearer(await edged.service.user("root", role="ADMIN", projects=()))
    async with edged.service.channel() as channel:
        stub: fleet_service_pb2_grpc.FleetServiceAsyncStub = fleet_service_pb2_grpc.FleetServiceStub(channel)

        async def listed() -> pb.Router:
            (found,) = (await stub.ListRouters(pb.ListRoutersRequest(), metadata=admin)).routers
            return found

        await edged.acknowledged(edged.edge.publish([toy()]))
        found = await eventually(listed, lambda found: found.state is pb.ROUTER_STATE_ALIVE)
        assert (found.id, found.url) == ("r1", f"http://127.0.0.1:{edged.port}")
        assert edged.edge.addresses() == {"127.0.0.1"}
        for _ in range(2):
            answer = await stub.RevokeRouter(pb.RevokeRouterRequest(router="r1"), metadata=admin)
            assert answer.router.state is pb.ROUTER_STATE_REVOKED
        await eventually(lambda: not edged.edge.addresses() and edged.edge.traffic().live == 0)
        unknown = await failure(stub.RevokeRouter(pb.RevokeRouterRequest(router="r9"), metadata=admin))
        assert unknown.code is Code.NOT_FOUND


async def test_a_router_that_has_a_name_only_is_known_by_the_addresses_of_it(edged: Edged) -> None:
    await edged.acknowledged(edged.edge.publish([toy()]))
    (port,) = {target.address.rpartition(":")[2] for target in await targets(edged)}
    # No address of before counts.
    await move(edged, "router.invalid:1")
    await eventually(edged.edge.addresses, frozenset().__eq__)
    await move(edged, f"localhost:{port}")
    await eventually(edged.edge.addresses, lambda found: "127.0.0.1" in found and found <= {"127.0.0.1", "::1"})
    await edged.acknowledged(edged.edge.publish([toy()]))


async def targets(edged: Edged) -> list[routers.RouterTarget]:
    async with edged.service.database.transaction() as tx:
        return list(await routers.read_targets(tx))


async def move(edged: Edged, address: str) -> None:
    """Has the router be at another address from now on."""
    async with edged.service.database.transaction() as tx:
        await tx.execute(text("UPDATE router SET address = :address"), {"address": address})


async def test_an_endpoint_that_cannot_be_sent_costs_itself_only(edged: Edged) -> None:
    async with Backend("a") as backend:
        good = toy(backend.port)
        bad = replace(toy(), id=uuid.uuid4(), host_label="toy-2", routing=RoutingPolicy(idle_timeout_ms=10**30))
        await edged.acknowledged(edged.edge.publish([good, bad]))
        answer = await request(edged.port, host="toy-1.edge.test")
    assert answer.status == 200
    assert not edged.running.done()
