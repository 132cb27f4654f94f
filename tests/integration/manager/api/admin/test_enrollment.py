"""Nodes become agents once per use of a token, under their own name only."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from cryptography import x509
from sqlalchemy import text

from retinue.manager.identity.tokens import JOIN_TOKEN_PREFIX, new_secret
from retinue.manager.store.fleet import agents
from retinue.manager.v1 import enrollment_service_pb2 as pb
from retinue.manager.v1 import enrollment_service_pb2_grpc
from tests.integration.manager.rig import Failure, Service, failure, key_and_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode


class Node:
    """Something that wants to be an agent."""

    def __init__(self, service: Service, channel: grpc.aio.Channel) -> None:
        self.service = service
        self._stub = enrollment_service_pb2_grpc.EnrollmentServiceStub(channel)
        self.key, self.request = key_and_request()

    async def enrol(
        self,
        token: str,
        agent_id: str,
        request: str | None = None,
        *,
        kind: pb.NodeKind.ValueType = pb.NODE_KIND_UNSPECIFIED,
    ) -> pb.EnrollResponse:
        wanted = self.request if request is None else request
        return await self._stub.Enroll(
            pb.EnrollRequest(join_token=token, agent_id=agent_id, certificate_request=wanted, kind=kind)
        )


@pytest_asyncio.fixture(loop_scope="session")
async def node(service: Service) -> AsyncIterator[Node]:
    async with service.channel() as channel:
        yield Node(service, channel)


def as_agent(channel: grpc.aio.Channel) -> enrollment_service_pb2_grpc.EnrollmentServiceAsyncStub:
    return enrollment_service_pb2_grpc.EnrollmentServiceStub(channel)


def announcement(agent_id: str, address: str = "10.0.0.1:7442", instance: str = "first") -> pb.AnnounceRequest:
    return pb.AnnounceRequest(agent_id=agent_id, address=address, instance=instance, version="1.0")


def refused_token(found: Failure) -> bool:
    return (found.code, found.reason) == (Code.UNAUTHENTICATED, "JOIN_TOKEN_INVALID")


async def test_from_token_to_announcement(node: Node) -> None:
    service = node.service
    answer = await node.enrol(await service.join_token(), "n1")
    assert answer.ca_certificate.encode() == service.authority.certificate
    assert answer.agent_endpoint == service.agent_endpoint
    certificate = x509.load_pem_x509_certificate(answer.certificate.encode())
    assert certificate.not_valid_after_utc.timestamp() == answer.expire_time.ToSeconds()
    async with service.channel(key=node.key, certificate=answer.certificate.encode()) as channel:
        stub = as_agent(channel)
        for _ in range(2):
            await stub.Announce(announcement("n1"))
        assert len(service.moved) == 1
        _, request = key_and_request()
        renewed = await stub.RenewCertificate(pb.RenewCertificateRequest(agent_id="n1", certificate_request=request))
        assert renewed.certificate != answer.certificate
        bad = await failure(stub.RenewCertificate(pb.RenewCertificateRequest(agent_id="n1", certificate_request="x")))
        assert (bad.code, bad.fields) == (Code.INVALID_ARGUMENT, ["certificate_request"])
    async with service.database.transaction() as tx:
        agent = await agents.get(tx, "n1")
    assert agent is not None
    assert (agent.state, agent.address, agent.instance, agent.resource_group) == (
        "JOINING",
        "10.0.0.1:7442",
        "first",
        "default",
    )


@pytest.mark.attack("greedy-certificates")
async def test_a_request_for_other_names_gets_its_own(node: Node) -> None:
    names = (x509.DNSName("manager.retinue"), x509.UniformResourceIdentifier("spiffe://retinue/agent/n2"))
    _, greedy = key_and_request(*names)
    answer = await node.enrol(await node.service.join_token(), "n1", greedy)
    certificate = x509.load_pem_x509_certificate(answer.certificate.encode())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == ["n1.agent.retinue"]
    async with node.service.database.transaction() as tx:
        agent = await agents.get(tx, "n1")
    assert agent is not None
    uri = f"spiffe://retinue/agent/n1/{agent.generation}"
    assert found.get_values_for_type(x509.UniformResourceIdentifier) == [uri]


@pytest.mark.attack("wrong-join-tokens")
async def test_tokens_that_are_no_good(node: Node) -> None:
    service = node.service
    used = await service.join_token()
    await node.enrol(used, "n1")
    bad = [
        "",
        "x",
        new_secret(JOIN_TOKEN_PREFIX),
        used,
        await service.join_token(seconds=-1),
        await service.join_token(agent_id="other"),
    ]
    for token in bad:
        assert refused_token(await failure(node.enrol(token, "n2")))
        if token != bad[-1]:
            # Without a good token nothing else is said, right or wrong.
            assert refused_token(await failure(node.enrol(token, "-", "x")))
    async with service.database.transaction() as tx:
        assert await agents.get(tx, "n2") is None


async def test_a_failed_enrolment_uses_nothing_up(node: Node) -> None:
    token = await node.service.join_token()
    for agent_id, request, field in (
        ("-", None, "agent_id"),
        ("n1", "x", "certificate_request"),
        ("manager\n", None, "agent_id"),
    ):
        failed = await failure(node.enrol(token, agent_id, request))
        assert (failed.code, failed.fields) == (Code.INVALID_ARGUMENT, [field])
    await node.enrol(token, "n1")


@pytest.mark.attack("wrong-join-tokens")
async def test_one_use_is_one_agent_however_many_come_at_once(node: Node) -> None:
    token = await node.service.join_token()
    results = await asyncio.gather(*(node.enrol(token, f"n{number}") for number in range(16)), return_exceptions=True)
    assert sum(isinstance(result, pb.EnrollResponse) for result in results) == 1
    several = await node.service.join_token(uses=5)
    results = await asyncio.gather(*(node.enrol(several, f"m{number}") for number in range(16)), return_exceptions=True)
    assert sum(isinstance(result, pb.EnrollResponse) for result in results) == 5
    async with node.service.database.transaction() as tx:
        assert len(await agents.list_page(tx, terms=(), after="", limit=50)) == 6


async def test_an_id_belongs_to_the_agent_that_announced_it_first(node: Node) -> None:
    token = await node.service.join_token(uses=32)
    requests = [key_and_request()[1] for _ in range(16)]
    results = await asyncio.gather(*(node.enrol(token, "n1", each) for each in requests), return_exceptions=True)
    assert sum(isinstance(result, pb.EnrollResponse) for result in results) == 1
    taken = await failure(node.enrol(token, "n1"))
    assert (taken.code, taken.reason) == (Code.ALREADY_EXISTS, "AGENT_ID_IN_USE")
    # What failed used nothing up.
    async with node.service.database.transaction() as tx:
        assert (await tx.execute(text("SELECT uses_left FROM join_token"))).scalar_one() == 31


@pytest.mark.attack("wrong-join-tokens")
@pytest.mark.parametrize("kind", [pb.NODE_KIND_AGENT, pb.NODE_KIND_ROUTER])
async def test_an_answer_that_was_lost_is_repeated_until_the_node_announces_itself(
    node: Node, kind: pb.NodeKind.ValueType
) -> None:
    service = node.service
    token = await service.join_token(kind="ROUTER" if kind == pb.NODE_KIND_ROUTER else "AGENT")
    first = await node.enrol(token, "n1", kind=kind)
    again = await node.enrol(token, "n1", kind=kind)
    assert again.certificate != first.certificate
    # With another key it is another node, and so is one of another name.
    assert refused_token(await failure(node.enrol(token, "n1", key_and_request()[1], kind=kind)))
    assert refused_token(await failure(node.enrol(token, "n2", kind=kind)))
    other = await service.join_token(kind="ROUTER" if kind == pb.NODE_KIND_ROUTER else "AGENT")
    assert (await failure(node.enrol(other, "n1", kind=kind))).reason == "AGENT_ID_IN_USE"
    async with service.channel(key=node.key, certificate=again.certificate.encode()) as channel:
        await as_agent(channel).Announce(announcement("n1"))
    assert refused_token(await failure(node.enrol(token, "n1", kind=kind)))


@pytest.mark.attack("revoked-nodes")
async def test_a_revoked_node_has_no_answer_repeated(node: Node) -> None:
    token = await node.service.join_token()
    await node.enrol(token, "n1")
    async with node.service.database.transaction() as tx:
        assert await agents.revoke(tx, "n1")
    assert refused_token(await failure(node.enrol(token, "n1")))


async def test_a_token_for_the_id_lets_a_lost_node_back_in(node: Node) -> None:
    service = node.service
    await node.enrol(await service.join_token(), "n1")
    await node.enrol(await service.join_token(agent_id="n1"), "n1")
    for state, allowed in (("ALIVE", False), ("SUSPECT", False), ("LOST", True)):
        async with service.database.transaction() as tx:
            await tx.execute(text("UPDATE agent SET state = :state"), {"state": state})
        token = await service.join_token(agent_id="n1")
        if allowed:
            await node.enrol(token, "n1")
        else:
            assert (await failure(node.enrol(token, "n1"))).reason == "AGENT_ID_IN_USE"


async def test_a_node_that_enrols_again_stays_drained_unless_it_was_removed(node: Node) -> None:
    service = node.service

    async def enrol_again() -> tuple[bool, bool]:
        await node.enrol(await service.join_token(agent_id="n1"), "n1")
        async with service.database.transaction() as tx:
            agent = await agents.get(tx, "n1")
        assert agent is not None
        return agent.drained, agent.drain_deadline_time is not None

    assert await enrol_again() == (False, False)
    async with service.database.transaction() as tx:
        await agents.set_drained(tx, "n1", drained=True, deadline=dt.timedelta(hours=1))
    assert await enrol_again() == (True, True)
    async with service.database.transaction() as tx:
        assert await agents.revoke(tx, "n1")
    assert await enrol_again() == (False, False)


@pytest.mark.attack("reports-about-others")
async def test_an_agent_speaks_for_itself_only(node: Node) -> None:
    for agent_id in ("n1", "n2"):
        await node.enrol(await node.service.join_token(), agent_id)
    async with node.service.as_agent("n1") as channel:
        for call in (
            as_agent(channel).Announce(announcement("n2")),
            as_agent(channel).RenewCertificate(
                pb.RenewCertificateRequest(agent_id="n2", certificate_request=node.request)
            ),
        ):
            refused = await failure(call)
            assert (refused.code, refused.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")


async def test_bad_announcements(node: Node) -> None:
    await node.enrol(await node.service.join_token(), "n1")
    async with node.service.as_agent("n1") as channel:
        wrong = pb.AnnounceRequest(agent_id="n1", address="0.0.0.0:1", version="x" * 65)
        failed = await failure(as_agent(channel).Announce(wrong))
        assert (failed.code, failed.fields) == (Code.INVALID_ARGUMENT, ["address", "version", "instance"])


@pytest.mark.attack("copied-nodes")
@pytest.mark.parametrize("state", ["JOINING", "ALIVE", "SUSPECT", "LOST"])
async def test_a_copy_is_refused_whatever_became_of_the_first(node: Node, state: str) -> None:
    service = node.service
    await node.enrol(await service.join_token(), "n1")
    async with service.as_agent("n1") as channel:
        stub = as_agent(channel)
        await stub.Announce(announcement("n1"))
        async with service.database.transaction() as tx:
            await tx.execute(text("UPDATE agent SET state = :state"), {"state": state})
        for address in ("10.0.0.2:7442", "10.0.0.1:7442"):
            copy = await failure(stub.Announce(announcement("n1", address, "second")))
            assert (copy.code, copy.reason) == (Code.ALREADY_EXISTS, "AGENT_ID_IN_USE")
            assert "a copy is refused" in copy.text
        # The same one may move.
        await stub.Announce(announcement("n1", "10.0.0.3:7442", "first"))
        async with service.database.transaction() as tx:
            agent = await agents.get(tx, "n1")
            assert agent is not None
            assert (agent.address, agent.instance) == ("10.0.0.3:7442", "first")
            await tx.execute(text("UPDATE agent SET state = 'LOST'"))
    # An agent that enrols again takes its place.
    answer = await node.enrol(await service.join_token(agent_id="n1"), "n1")
    async with service.channel(key=node.key, certificate=answer.certificate.encode()) as channel:
        await as_agent(channel).Announce(announcement("n1", "10.0.0.2:7442", "second"))


@pytest.mark.attack("revoked-nodes")
async def test_a_certificate_of_a_former_generation_stays_worthless(node: Node) -> None:
    service = node.service
    stolen = await node.enrol(await service.join_token(), "n1")
    async with service.database.transaction() as tx:
        assert await agents.revoke(tx, "n1")
    again, request = key_and_request()
    good = await node.enrol(await service.join_token(agent_id="n1"), "n1", request)
    async with (
        service.channel(key=node.key, certificate=stolen.certificate.encode()) as thief,
        service.channel(key=again, certificate=good.certificate.encode()) as owner,
    ):
        for round_ in range(2):
            for call in (
                as_agent(thief).Announce(announcement("n1", instance="thief")),
                as_agent(thief).RenewCertificate(
                    pb.RenewCertificateRequest(agent_id="n1", certificate_request=node.request)
                ),
            ):
                refused = await failure(call)
                assert (refused.code, refused.reason) == (Code.UNAUTHENTICATED, "AGENT_REVOKED"), round_
            await as_agent(owner).Announce(announcement("n1"))
            await as_agent(owner).RenewCertificate(
                pb.RenewCertificateRequest(agent_id="n1", certificate_request=request)
            )


async def test_two_that_renew_one_certificate_are_reported(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    service = node.service
    answer = await node.enrol(await service.join_token(), "n1")

    async def renew(key: bytes, certificate: str) -> tuple[bytes, str]:
        new, request = key_and_request()
        async with service.channel(key=key, certificate=certificate.encode()) as channel:
            renewal = pb.RenewCertificateRequest(agent_id="n1", certificate_request=request)
            return new, (await as_agent(channel).RenewCertificate(renewal)).certificate

    with caplog.at_level("WARNING"):
        first = await renew(node.key, answer.certificate)
        await renew(*first)
        assert "renewed a certificate that is not its newest" not in caplog.text
        await renew(node.key, answer.certificate)
    assert "agent n1 renewed a certificate that is not its newest" in caplog.text


@pytest.mark.attack("revoked-nodes")
@pytest.mark.parametrize("known", [True, False], ids=["revoked", "never enrolled"])
async def test_agents_that_are_not(node: Node, known: bool) -> None:
    if known:
        await node.enrol(await node.service.join_token(), "n1")
        async with node.service.database.transaction() as tx:
            assert await agents.revoke(tx, "n1")
            assert not await agents.revoke(tx, "n1")
    async with node.service.as_agent("n1") as channel:
        stub = as_agent(channel)
        for call in (
            stub.Announce(announcement("n1")),
            stub.RenewCertificate(pb.RenewCertificateRequest(agent_id="n1", certificate_request=node.request)),
        ):
            refused = await failure(call)
            assert (refused.code, refused.reason) == (Code.UNAUTHENTICATED, "AGENT_REVOKED")
