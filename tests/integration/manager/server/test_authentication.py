"""Credentials: who gets in with what, and how soon a revoked one is worthless."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from sqlalchemy import text

from retinue.client.transport.rpc_errors import from_rpc
from retinue.manager.domain.errors import AgentRevoked, TokenInvalid
from retinue.manager.gateway.core.rules import ACCESS_PREFIX, TICKET_PREFIX
from retinue.manager.identity.tokens import (
    CONSOLE_TICKET_PREFIX,
    JOIN_TOKEN_PREFIX,
    TOKEN_PREFIX,
    hash_secret,
    new_secret,
)
from retinue.manager.listeners import SERVICES
from retinue.manager.server import authentication, wrong_tokens
from retinue.manager.server.authentication import Authenticator
from retinue.manager.server.calls import Call
from retinue.manager.store.accounts import accounts
from retinue.manager.store.fleet import agents
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.lanes import POOL_SIZES, Lane
from retinue.manager.v1 import (
    account_service_pb2,
    account_service_pb2_grpc,
    enrollment_service_pb2,
    enrollment_service_pb2_grpc,
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)
from tests.integration.manager.rig import Service, bearer, failure, taken_apart
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode
_CALLER = account_service_pb2.GetCallerRequest()


@pytest_asyncio.fixture(loop_scope="session")
async def channel(service: Service) -> AsyncIterator[grpc.aio.Channel]:
    async with service.channel() as made:
        yield made


async def call_as(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> Any:
    return await account_service_pb2_grpc.AccountServiceStub(channel).GetCaller(_CALLER, metadata=metadata)


@pytest.mark.attack("no-credentials")
async def test_no_credentials(channel: grpc.aio.Channel) -> None:
    for metadata in (
        (),
        (("authorization", ""),),
        (("authorization", "bearer x"),),
        (("authorization", "Basic eDp5"),),
    ):
        refused = await failure(call_as(channel, *metadata))
        assert (refused.code, refused.reason) == (Code.UNAUTHENTICATED, "CREDENTIALS_MISSING")


@pytest.mark.attack("wrong-tokens", "web-tokens-of-users")
async def test_tokens_that_are_none(service: Service, channel: grpc.aio.Channel) -> None:
    good = await service.user("ada")
    bad = [
        "x",
        new_secret(TOKEN_PREFIX),
        new_secret(JOIN_TOKEN_PREFIX),
        good[:-1],
        good + "x",
        good.upper(),
        "' OR TRUE --",
        # Secrets of other kinds, and JWTs: unsigned, and signed with a key of their maker's.
        *(new_secret(prefix) for prefix in (CONSOLE_TICKET_PREFIX, TICKET_PREFIX, ACCESS_PREFIX)),
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmVkIGJ5IGl0cyBtYWtlciBhbG9uZSwgaXQgaXM",
        await service.join_token(),
    ]
    texts = set()
    for token in bad:
        refused = await failure(call_as(channel, *bearer(token)))
        assert (refused.code, refused.reason) == (Code.UNAUTHENTICATED, "TOKEN_INVALID")
        assert token not in refused.text or len(token) == 1
        texts.add(refused.text.split("debug_error_string")[0])
    assert len(texts) == 1
    twice = await failure(call_as(channel, *bearer(good), *bearer(good)))
    assert twice.reason == "CREDENTIALS_MISSING"
    assert (await call_as(channel, *bearer(good))).user.name == "ada"


@pytest.mark.attack("wrong-tokens")
async def test_a_huge_token(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call_as(channel, *bearer("x" * 100_000))
    assert caught.value.code() is Code.RESOURCE_EXHAUSTED


@pytest.mark.attack("expired-and-revoked-tokens")
async def test_expired_and_revoked(service: Service, channel: grpc.aio.Channel) -> None:
    token = await service.user("ada")
    assert (await call_as(channel, *bearer(token))).user.name == "ada"
    changes = {"expire_time = now() - interval '1 s'": "the token expired at 2", "revoke_time = now()": "was revoked"}
    for change, told in changes.items():
        secret = new_secret(TOKEN_PREFIX)
        async with service.database.transaction() as tx:
            made = await accounts.create_token(tx, "ada", hash_secret(secret), description="", ttl=None)
            await tx.execute(text(f"UPDATE token SET {change} WHERE id = :id"), {"id": made.id})  # noqa: S608
        refused = await failure(call_as(channel, *bearer(secret)))
        assert (refused.code, refused.reason) == (Code.UNAUTHENTICATED, "TOKEN_INVALID")
        assert told in refused.text
        # Who does not have the whole secret learns nothing.
        unknown = await failure(call_as(channel, *bearer(secret[:-1] + ("a" if secret[-1] != "a" else "b"))))
        assert (unknown.reason, "the token is not valid" in unknown.text) == ("TOKEN_INVALID", True)


@pytest.mark.attack("plaintext-and-old-tls")
async def test_without_tls_nothing_is_said(service: Service) -> None:
    async with grpc.aio.insecure_channel(service.endpoint) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call_as(channel, *bearer(await service.user("ada")))
    assert caught.value.code() is Code.UNAVAILABLE


@pytest.mark.attack("plaintext-and-old-tls")
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_versions_of_tls(service: Service) -> None:
    versions = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2
    # Without a certificate, the port of agents ends the handshake of newer versions, too.
    for endpoint, expected in ((service.endpoint, [ssl.TLSVersion.TLSv1_2]), (service.agent_endpoint, [])):
        host, _, port = endpoint.rpartition(":")
        spoken = []
        for version in versions:
            context = ssl.create_default_context(cadata=service.authority.certificate.decode())
            context.set_alpn_protocols(["h2"])
            # What OpenSSL would not say by itself any more.
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
            try:
                _, writer = await asyncio.open_connection(
                    host, int(port), ssl=context, server_hostname="manager.retinue"
                )
            except (ssl.SSLError, ConnectionError):
                continue
            spoken.append(version)
            writer.transport.abort()
        assert spoken == expected


@pytest.mark.attack("plaintext-and-old-tls")
async def test_the_port_for_agents_wants_a_certificate(service: Service) -> None:
    token = await service.user("ada")
    options = (("grpc.ssl_target_name_override", "manager.retinue"),)
    credentials = grpc.ssl_channel_credentials(service.authority.certificate)
    async with grpc.aio.secure_channel(service.agent_endpoint, credentials, options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call_as(channel, *bearer(token))
    assert caught.value.code() is Code.UNAVAILABLE


@pytest.mark.attack("plaintext-and-old-tls", "certificates-of-a-former-authority")
async def test_a_certificate_of_another_authority(service: Service, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = service.authority.load(tmp_path_factory.mktemp("other"), lambda: dt.datetime.now(dt.UTC))
    forged = other.issue_manager_client()
    async with service.channel(key=forged.key, certificate=forged.certificate) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call_as(channel)
    assert caught.value.code() is Code.UNAVAILABLE


async def enrolled(service: Service, agent_id: str) -> int:
    secret = await service.join_token()
    async with service.database.transaction() as tx:
        return await agents.enrol(tx, hash_secret(secret), agent_id)


@pytest.mark.attack("agents-as-users")
async def test_an_agent_calls_no_method_of_users(service: Service) -> None:
    await enrolled(service, "n1")
    token = await service.user("root", role="ADMIN")
    async with service.as_agent("n1") as channel:
        fleet = fleet_service_pb2_grpc.FleetServiceStub(channel)
        session = session_service_pb2_grpc.SessionServiceStub(channel)
        account = account_service_pb2_grpc.AccountServiceStub(channel)
        # A token besides the certificate does not help.
        for metadata in ((), bearer(token)):
            calls: list[Awaitable[Any]] = [
                account.GetCaller(_CALLER, metadata=metadata),
                account.CreateToken(account_service_pb2.CreateTokenRequest(), metadata=metadata),
                fleet.ListAgents(fleet_service_pb2.ListAgentsRequest(), metadata=metadata),
                fleet.CreateJoinToken(fleet_service_pb2.CreateJoinTokenRequest(), metadata=metadata),
                session.CreateSession(session_service_pb2.CreateSessionRequest(), metadata=metadata),
                anext(aiter(session.WatchSessions(session_service_pb2.WatchSessionsRequest(), metadata=metadata))),
            ]
            for call in calls:
                refused = await failure(call)
                assert (refused.code, refused.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")


@pytest.mark.attack("methods-of-agents")
async def test_a_user_calls_no_method_of_agents(service: Service, channel: grpc.aio.Channel) -> None:
    token = await service.user("n1", role="ADMIN")
    stub = enrollment_service_pb2_grpc.EnrollmentServiceStub(channel)
    for call in (
        stub.Announce(enrollment_service_pb2.AnnounceRequest(agent_id="n1"), metadata=bearer(token)),
        stub.RenewCertificate(enrollment_service_pb2.RenewCertificateRequest(agent_id="n1"), metadata=bearer(token)),
    ):
        refused = await failure(call)
        assert (refused.code, refused.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")


async def test_the_managers_own_certificate_is_nobodys(service: Service) -> None:
    own = service.authority.issue_manager_client()
    async with service.channel(key=own.key, certificate=own.certificate) as channel:
        refused = await failure(call_as(channel))
        assert (refused.code, refused.reason) == (Code.UNAUTHENTICATED, "CREDENTIALS_MISSING")


@pytest.mark.attack("no-credentials", "reflection")
async def test_what_anyone_may_call(service: Service, channel: grpc.aio.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", *SERVICES):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health.Check(health_pb2.HealthCheckRequest(service="undeclared"))
    assert caught.value.code() is Code.NOT_FOUND
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    # What there is to call is said to those who may call something.
    stranger = reflection.ServerReflectionInfo(iter([request]))
    refused = await failure(anext(aiter(stranger)))
    assert (refused.code, refused.reason) == (Code.UNAUTHENTICATED, "CREDENTIALS_MISSING")
    token = bearer(await service.user("ada"))
    responses = [response async for response in reflection.ServerReflectionInfo(iter([request]), metadata=token)]
    assert [{service.name for service in response.list_services_response.service} for response in responses] == [
        set(SERVICES)
    ]


@pytest.mark.attack("no-grpc", "sign-up")
async def test_unknown_methods(channel: grpc.aio.Channel) -> None:
    call: Any = channel.unary_unary("/retinue.manager.v1.SessionService/Undeclared")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"")
    assert caught.value.code() is Code.UNIMPLEMENTED


@pytest.mark.attack("expired-and-revoked-tokens")
@pytest.mark.parametrize("how", ["rpc", "database"])
async def test_a_stream_of_a_revoked_token_ends_within_5_seconds(
    service: Service, channel: grpc.aio.Channel, how: str
) -> None:
    token, admin = await service.user("ada"), await service.user("root", role="ADMIN")
    stub = session_service_pb2_grpc.SessionServiceStub(channel)
    watches = [
        stub.WatchSessions(session_service_pb2.WatchSessionsRequest(), metadata=bearer(secret))
        for secret in (token, admin)
    ]
    for watch in watches:
        await watch.read()
    if how == "rpc":
        account = account_service_pb2_grpc.AccountServiceStub(channel)
        tokens = await account.ListTokens(account_service_pb2.ListTokensRequest(user="ada"), metadata=bearer(admin))
        request = account_service_pb2.RevokeTokenRequest(token_id=tokens.tokens[0].id)
        await account.RevokeToken(request, metadata=bearer(admin))
    else:
        # As another replica would do it.
        async with service.database.transaction() as tx:
            await tx.execute(text("UPDATE token SET revoke_time = now() WHERE user_name = 'ada'"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watches[0].read()
    ended = taken_apart(caught.value)
    assert (ended.code, ended.reason) == (Code.UNAUTHENTICATED, "TOKEN_INVALID")
    # Others are not touched.
    assert not watches[1].done()
    watches[1].cancel()


def call_of(token: str = "", agent_id: str = "", generation: int = 0) -> Call:
    """As much of a call as authentication looks at."""
    uri = f"spiffe://retinue/agent/{agent_id}/{generation}".encode()
    identities = {"x509_subject_alternative_name": (uri,)} if agent_id else {}
    return Call("/x.Y/Z", "ipv4:127.0.0.1:1", bearer(token), identities, None, "x")


async def test_what_is_remembered_and_for_how_long(service: Service, database: Database) -> None:
    token = await service.user("ada")
    generation = await enrolled(service, "n1")
    clock = [0.0]
    wall = [dt.datetime.now(dt.UTC)]
    asking = Authenticator(service.database, monotonic=lambda: clock[0], clock=lambda: wall[0])
    user = call_of(token)
    agent = call_of(agent_id="n1", generation=generation)
    await asking.authenticate(user)
    await asking.authenticate(agent)
    async with service.database.transaction() as tx:
        await tx.execute(text("UPDATE token SET revoke_time = now()"))
        assert await agents.revoke(tx, "n1")
    clock[0] = authentication.CACHE_SECONDS - 0.1
    assert (await asking.authenticate(user)).name == "ada"
    assert (await asking.authenticate(agent)).name == "n1"
    clock[0] = authentication.CACHE_SECONDS
    with pytest.raises(TokenInvalid):
        await asking.authenticate(user)
    with pytest.raises(AgentRevoked):
        await asking.authenticate(agent)
    async with service.database.transaction() as tx:
        await tx.execute(text("UPDATE token SET revoke_time = NULL, expire_time = now() + interval '1 h'"))
    asking.forget()
    assert (await asking.authenticate(user)).name == "ada"
    # What is remembered still expires at its time.
    wall[0] += dt.timedelta(hours=2)
    with pytest.raises(TokenInvalid):
        await asking.authenticate(user)


async def test_an_outage_is_no_verdict(tmp_path: object) -> None:
    nowhere = Database(f"postgresql://x@/x?host={tmp_path}")
    try:
        asking = Authenticator(nowhere, monotonic=time.monotonic, clock=lambda: dt.datetime.now(dt.UTC))
        caller = call_of(new_secret(TOKEN_PREFIX))
        with pytest.raises(StoreUnavailable):
            await asking.authenticate(caller)
    finally:
        await nowhere.dispose()


@pytest.mark.attack("guessed-tokens")
async def test_tokens_that_wait_for_the_database_are_looked_up_together(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = await service.user("ada")
    began = 0
    transaction = service.database.transaction

    def counted() -> Any:
        nonlocal began
        began += 1
        return transaction()

    asking = Authenticator(service.database, monotonic=time.monotonic, clock=lambda: dt.datetime.now(dt.UTC))
    calls = [call_of(new_secret(TOKEN_PREFIX)) for _ in range(500)]
    async with service.database.transaction() as tx:
        await tx.execute(text("LOCK TABLE token"))
        monkeypatch.setattr(service.database, "transaction", counted)
        answers = asyncio.gather(*map(asking.authenticate, [*calls, call_of(good)]), return_exceptions=True)

        async def lookup_waits() -> bool:
            waits = "SELECT count(*) FROM pg_locks WHERE relation = 'token'::regclass AND NOT granted"
            return bool((await tx.execute(text(waits))).scalar_one())

        await eventually(lookup_waits)
    *wrong, right = await answers
    assert {type(answer) for answer in wrong} == {TokenInvalid}
    assert not isinstance(right, BaseException)
    assert right.name == "ada"
    # One for each connection, and one for all others.
    assert began <= POOL_SIZES[Lane.CREDENTIALS] + 1


@pytest.mark.attack("guessed-tokens")
async def test_wrong_tokens_harm_no_other_caller(
    service: Service, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = wrong_tokens.WrongTokens.count
    # None of them is forgiven meanwhile.
    monkeypatch.setattr(wrong_tokens.WrongTokens, "count", lambda counted, address, _now: count(counted, address, 0.0))
    good = await service.user("ada")
    enrollment = enrollment_service_pb2_grpc.EnrollmentServiceStub(channel)
    answers: Counter[tuple[Code, str]] = Counter()

    async def guess() -> None:
        for _ in range(20):
            refused = await failure(call_as(channel, *bearer(new_secret(TOKEN_PREFIX))))
            answers[refused.code, refused.reason] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(guess())
        for number in range(40):
            # Valid ones come from the same address, and one in two was never seen before.
            token = good if number % 2 else await service.user(f"user{number}")
            assert (await call_as(channel, *bearer(token))).user.name in {"ada", f"user{number}"}
    assert set(answers) == {(Code.UNAUTHENTICATED, "TOKEN_INVALID"), (Code.RESOURCE_EXHAUSTED, "TOO_MANY_WRONG_TOKENS")}
    assert answers.total() == 4 * wrong_tokens.BURST
    assert answers[Code.UNAUTHENTICATED, "TOKEN_INVALID"] == wrong_tokens.BURST

    # Those of agents count too, and the answer says when to retry.
    request = enrollment_service_pb2.EnrollRequest(join_token=new_secret(JOIN_TOKEN_PREFIX), agent_id="n1")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await enrollment.Enroll(request)
    refusal = from_rpc(caught.value)
    assert (refusal.code, refusal.reason) == (Code.RESOURCE_EXHAUSTED, "TOO_MANY_WRONG_TOKENS")
    assert refusal.retry_after is not None
    assert 1 <= refusal.retry_after <= 2 * wrong_tokens.BURST / wrong_tokens.FORGIVEN

    # A stream whose token is revoked meanwhile gets just that error.
    stub = session_service_pb2_grpc.SessionServiceStub(channel)
    watch = stub.WatchSessions(session_service_pb2.WatchSessionsRequest(), metadata=bearer(good))
    await watch.read()
    async with service.database.transaction() as tx:
        await tx.execute(text("UPDATE token SET revoke_time = now() WHERE user_name = 'ada'"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watch.read()
    assert taken_apart(caught.value).reason == "TOKEN_INVALID"
