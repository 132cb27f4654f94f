"""Nodes whose certificates have expired come back by themselves, once, and nobody else by theirs."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, TypeAlias

import grpc
import pytest
import pytest_asyncio

from retinue.manager.identity.authority import Authority, certificate_fingerprint
from retinue.manager.identity.principal import Kind
from retinue.manager.identity.tokens import JOIN_TOKEN_PREFIX, hash_secret, new_secret
from retinue.manager.store.fleet import agents, routers
from retinue.manager.store.postgres import cluster
from retinue.manager.v1 import enrollment_service_pb2 as pb
from retinue.manager.v1 import enrollment_service_pb2_grpc
from retinue.rpc.enrollment.identity import KeyRequest, new_key
from retinue.rpc.enrollment.recovery import sign
from tests.integration.manager.rig import Service, failure, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from types import ModuleType

    Stub: TypeAlias = enrollment_service_pb2_grpc.EnrollmentServiceAsyncStub

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode
STORES: dict[Kind, ModuleType] = {Kind.AGENT: agents, Kind.ROUTER: routers}
KINDS = {Kind.AGENT: pb.NODE_KIND_AGENT, Kind.ROUTER: pb.NODE_KIND_ROUTER}


class Node:
    """A node that was off for a month; it talks to the port for users."""

    def __init__(self, service: Service, stub: Stub, directory: Path, kind: Kind) -> None:
        self.service, self.stub, self.kind = service, stub, kind
        self._past = Authority.load(directory, lambda: now() - dt.timedelta(days=30))
        self.key: KeyRequest = new_key("n1")
        self.generation, self.certificate = 0, ""

    async def enrol(self) -> None:
        async with self.service.database.transaction() as tx:
            secret = hash_secret(new_secret(JOIN_TOKEN_PREFIX))
            hour = dt.timedelta(hours=1)
            await agents.create_join_token(
                tx, secret, group="default", agent_id="n1", uses=1, ttl=hour, kind=self.kind.value
            )
            self.generation = await STORES[self.kind].enrol(tx, secret, "n1")
        await self.renewed()

    async def renewed(self) -> None:
        """Gets its newest certificate a month ago."""
        issued = self._past.issue_node(self.kind, "n1", self.generation, self.key.certificate_request)
        shown, self.certificate = certificate_fingerprint(self.certificate.encode()), issued.certificate.decode()
        await self.store(shown)

    async def store(self, shown: str = "") -> None:
        async with self.service.database.transaction() as tx:
            newest = certificate_fingerprint(self.certificate.encode())
            await STORES[self.kind].renew(tx, "n1", self.generation, newest, shown=shown)

    async def request(self, certificate: str = "") -> tuple[pb.RecoverCertificateRequest, KeyRequest]:
        kind, key = KINDS[self.kind], new_key("n1")
        challenge = (await self.stub.BeginRecovery(pb.BeginRecoveryRequest(agent_id="n1", kind=kind))).challenge
        request = pb.RecoverCertificateRequest(
            agent_id="n1",
            kind=kind,
            certificate=certificate or self.certificate,
            certificate_request=key.certificate_request,
            challenge=challenge,
            proof=sign(self.key.private_key, challenge, key.certificate_request),
        )
        return request, key

    async def announce(self, key: str, certificate: str) -> None:
        async with self.service.channel(key=key.encode(), certificate=certificate.encode()) as channel:
            stub: Stub = enrollment_service_pb2_grpc.EnrollmentServiceStub(channel)
            await stub.Announce(
                pb.AnnounceRequest(agent_id="n1", address="10.0.0.1:7442", instance="first", version="1")
            )

    async def refused(self, request: pb.RecoverCertificateRequest) -> bool:
        found = await failure(self.stub.RecoverCertificate(request))
        return (found.code, found.reason) == (Code.UNAUTHENTICATED, "AGENT_REVOKED")


@pytest_asyncio.fixture(loop_scope="session", params=[Kind.AGENT, Kind.ROUTER])
async def node(service: Service, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with service.channel() as channel:
        made = Node(service, enrollment_service_pb2_grpc.EnrollmentServiceStub(channel), tmp_path, request.param)
        await made.enrol()
        yield made


async def test_a_node_comes_back_and_its_former_key_does_not(node: Node) -> None:
    # Expired is expired: the port for nodes takes it for nothing.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.announce(node.key.private_key, node.certificate)
    assert caught.value.code() is Code.UNAVAILABLE
    request, key = await node.request()
    answer = await node.stub.RecoverCertificate(request)
    assert answer.expire_time.ToDatetime(dt.UTC) > now()
    # A copy of the message, while the node has not been heard: nothing, and nothing is lost by it.
    assert await node.refused(request)
    await node.announce(key.private_key, answer.certificate)
    assert await node.refused(request)
    assert await node.refused((await node.request())[0])


async def test_an_answer_that_is_lost_is_given_again(node: Node) -> None:
    await node.stub.RecoverCertificate((await node.request())[0])
    request, key = await node.request()
    answer = await node.stub.RecoverCertificate(request)
    await node.announce(key.private_key, answer.certificate)
    assert await node.refused((await node.request())[0])


@pytest.mark.attack("recovery-of-another-node")
async def test_an_older_certificate_of_the_same_enrolment_is_refused(node: Node) -> None:
    stolen = node.certificate
    await node.renewed()
    await node.renewed()
    assert await node.refused((await node.request(stolen))[0])
    await node.stub.RecoverCertificate((await node.request())[0])


@pytest.mark.attack("recovery-of-another-node")
async def test_a_revoked_node_stays_out(node: Node) -> None:
    before, _ = await node.request()
    async with node.service.database.transaction() as tx:
        assert await STORES[node.kind].revoke(tx, "n1")
    assert await node.refused(before)
    assert await node.refused((await node.request())[0])


@pytest.mark.attack("recovery-of-another-node")
async def test_a_certificate_of_a_former_enrolment_stays_worthless(node: Node) -> None:
    former, key = node.certificate, node.key
    node.key = new_key("n1")
    await node.enrol()
    node.key = key
    assert await node.refused((await node.request(former))[0])


async def test_nodes_come_back_to_a_database_that_was_restored(node: Node) -> None:
    async with node.service.database.transaction() as tx:
        await STORES[node.kind].renew(tx, "n1", node.generation, "f" * 64)
        await cluster.begin_incarnation(tx)
    request, key = await node.request()
    answer = await node.stub.RecoverCertificate(request)
    await node.announce(key.private_key, answer.certificate)
    assert await node.refused((await node.request())[0])


@pytest.mark.attack("recovery-of-another-node")
async def test_a_node_that_nobody_knows_is_told_as_much_as_others(node: Node) -> None:
    unknown = await node.stub.BeginRecovery(pb.BeginRecoveryRequest(agent_id="n9"))
    known = await node.stub.BeginRecovery(pb.BeginRecoveryRequest(agent_id="n1"))
    assert len(unknown.challenge) == len(known.challenge) > 0
    wrong = await failure(node.stub.BeginRecovery(pb.BeginRecoveryRequest(agent_id="../x")))
    assert (wrong.code, wrong.fields) == (Code.INVALID_ARGUMENT, ["agent_id"])


async def test_a_request_that_cannot_be_signed_changes_nothing(node: Node) -> None:
    request, _ = await node.request()
    request.certificate_request = "x"
    request.proof = sign(node.key.private_key, request.challenge, "x")
    wrong = await failure(node.stub.RecoverCertificate(request))
    assert (wrong.code, wrong.fields) == (Code.INVALID_ARGUMENT, ["certificate_request"])
    await node.stub.RecoverCertificate((await node.request())[0])
