"""What holds for every method of the contract, whatever it does: who is let in, and what a message may be."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy import text

from retinue.manager.identity.tokens import hash_secret
from retinue.manager.server import call_limits, interceptors
from retinue.manager.server.authorization import METHODS, Access
from retinue.manager.server.wrong_tokens import WrongTokens
from retinue.manager.store.fleet import agents
from retinue.manager.v1 import account_service_pb2, enrollment_service_pb2
from tests.integration.manager.rig import Service, bearer, taken_apart
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode
LARGEST = 4 << 20
# Methods of agents have the agent in field 1.
ANNOUNCED = enrollment_service_pb2.AnnounceRequest(agent_id="n1").SerializeToString()
# A field of which there is less than it says.
CUT_SHORT = b"\x0a\xff\x01"


@pytest.fixture(autouse=True)
def many_wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address may send one for each method, of which there are more than it may send at once otherwise."""
    monkeypatch.setattr(interceptors, "WrongTokens", functools.partial(WrongTokens, burst=10 * len(METHODS)))


@pytest_asyncio.fixture(loop_scope="session")
async def channel(service: Service) -> AsyncIterator[grpc.aio.Channel]:
    async with service.channel() as made:
        yield made


async def outcome(channel: Any, method: str, content: bytes = b"", **options: Any) -> grpc.aio.AioRpcError | None:
    """How a call with one request of raw bytes ends; None when it succeeds, or does not end."""
    service, name = method[1:].split("/")
    kind = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    kinds = {(False, False): "unary_unary", (False, True): "unary_stream", (True, True): "stream_stream"}
    made = getattr(channel, kinds[kind.client_streaming, kind.server_streaming])(method)
    call = made(iter([content]) if kind.client_streaming else content, timeout=NEVER, **options)
    try:
        await (call.read() if kind.server_streaming else call)
    except grpc.aio.AioRpcError as error:
        return error
    finally:
        call.cancel()
    return None


async def refusal(channel: grpc.aio.Channel, method: str, **options: Any) -> tuple[Code, str] | None:
    """Code and reason of a call that is not let in; None when it is, whatever becomes of it then."""
    error = await outcome(channel, method, **options)
    # Of a call that never came, or took too long, nothing is known.
    assert error is None or error.code() not in (Code.UNAVAILABLE, Code.CANCELLED, Code.DEADLINE_EXCEEDED), error
    if error is None or error.code() not in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
        return None
    refused = taken_apart(error)
    return refused.code, refused.reason


@pytest.mark.attack("no-credentials", "sign-up")
async def test_who_is_let_in(service: Service, channel: grpc.aio.Channel) -> None:
    join_token = await service.join_token()
    async with service.database.transaction() as tx:
        await agents.enrol(tx, hash_secret(join_token), "n1")
    good, expired = await service.user("ada"), await service.user("eve", role="ADMIN")
    async with service.database.transaction() as tx:
        await tx.execute(text("UPDATE token SET expire_time = now() - interval '1 s' WHERE user_name = 'eve'"))
    denied = Code.PERMISSION_DENIED, "METHOD_DENIED"
    closed = {method: access for method, access in METHODS.items() if access is not Access.ANYONE}
    assert len(closed) > 50
    async with service.as_agent("n1") as agent:
        for method, access in closed.items():
            assert await refusal(channel, method) == (Code.UNAUTHENTICATED, "CREDENTIALS_MISSING"), method
            wrong = await refusal(channel, method, metadata=bearer(expired))
            assert wrong == (Code.UNAUTHENTICATED, "TOKEN_INVALID"), method
            users = await refusal(channel, method, metadata=bearer(good))
            assert users == (None if access in (Access.USER, Access.CALLER) else denied), method
            # A good token beside the certificate does not help.
            agents_own = await refusal(agent, method, content=ANNOUNCED, metadata=bearer(good))
            assert agents_own == (None if access in (Access.NODE, Access.CALLER) else denied), method


@pytest.mark.attack("unreadable-messages")
async def test_what_cannot_be_read(
    service: Service, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    token = bearer(await service.user("root", role="ADMIN"))
    for method, access in METHODS.items():
        if access is not Access.NODE:
            ended = await outcome(channel, method, CUT_SHORT, metadata=token)
            assert ended is not None, method
            parsed = taken_apart(ended)
            assert (parsed.code, parsed.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELD"), method
            assert parsed.fields in (["request"], ["step"]), method
        if access is not Access.ANYONE:
            # The server does not read what unauthenticated callers send.
            assert await refusal(channel, method, content=CUT_SHORT) == (Code.UNAUTHENTICATED, "CREDENTIALS_MISSING")
    assert not [record for record in caplog.records if record.exc_info is not None]
    # Groups in groups, of a field that no message has.
    nested = await outcome(
        channel, "/retinue.manager.v1.AccountService/ListQuotas", b"\xa3\x06" * 50_000, metadata=token
    )
    assert nested is not None
    assert taken_apart(nested).fields == ["request"]
    no_text = account_service_pb2.ListQuotasRequest(name="xyz").SerializeToString().replace(b"xyz", b"\xff\xfe\xfd")
    ended = await outcome(channel, "/retinue.manager.v1.AccountService/ListQuotas", no_text, metadata=token)
    assert ended is not None
    assert taken_apart(ended).fields == ["request"]


@pytest.mark.attack("large-messages")
async def test_a_message_that_unpacks_to_more_than_the_limit(service: Service, channel: Any) -> None:
    token = bearer(await service.user("root", role="ADMIN"))
    packed = account_service_pb2.CreateTokenRequest(description="x" * (16 * LARGEST)).SerializeToString()
    ended = await outcome(
        channel,
        "/retinue.manager.v1.AccountService/CreateToken",
        packed,
        metadata=token,
        compression=grpc.Compression.Gzip,
    )
    assert ended is not None
    assert ended.code() is Code.RESOURCE_EXHAUSTED
    assert await outcome(channel, "/retinue.manager.v1.AccountService/GetCaller", metadata=token) is None


@pytest.mark.attack("streams-without-a-name")
async def test_an_address_has_so_many_streams_without_a_name(service: Service, channel: grpc.aio.Channel) -> None:
    limit = call_limits.STREAM_LIMITS["/grpc.health.v1.Health/Watch"]
    stub = health_pb2_grpc.HealthStub(channel)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(limit):
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            stack.callback(watch.cancel)
            await watch.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Watch(health_pb2.HealthCheckRequest()).read()
        assert (taken_apart(refused.value).code, taken_apart(refused.value).reason) == (
            Code.RESOURCE_EXHAUSTED,
            "STREAM_LIMIT",
        )
        # An authenticated caller is not delayed, nor is a caller that asks once.
        await stub.Check(health_pb2.HealthCheckRequest())
        assert (
            await outcome(
                channel,
                "/retinue.manager.v1.SessionService/WatchSessions",
                metadata=bearer(await service.user("ada")),
            )
            is None
        )


@pytest.mark.attack("no-grpc")
@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: manager.retinue\r\n\r\n",
        # Headers without an end.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\xff\xff\xff\x01\x00\x00\x00\x00\x01",
        b"\x00" * 4096,
    ],
)  # fmt: skip
async def test_what_is_no_grpc_ends_its_own_connection_only(
    service: Service, channel: grpc.aio.Channel, sent: bytes
) -> None:
    host, _, port = service.endpoint.rpartition(":")
    context = ssl.create_default_context(cadata=service.authority.certificate.decode())
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="manager.retinue")
    try:
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
            assert b"200 OK" not in answer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionResetError, ssl.SSLError):
            await writer.wait_closed()
    caller = await outcome(
        channel, "/retinue.manager.v1.AccountService/GetCaller", metadata=bearer(await service.user("ada"))
    )
    assert caller is None


@pytest.mark.attack("idle-connections")
async def test_connections_on_which_nothing_is_said_are_closed(service: Service) -> None:
    host, _, port = service.endpoint.rpartition(":")
    context = ssl.create_default_context(cadata=service.authority.certificate.decode())
    context.set_alpn_protocols(["h2"])

    async def ends(**options: Any) -> None:
        reader, writer = await asyncio.open_connection(host, int(port), **options)
        try:
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(4096):
                    pass
        finally:
            writer.transport.abort()

    # Before TLS, and after it.
    await asyncio.gather(ends(), ends(ssl=context, server_hostname="manager.retinue"))
