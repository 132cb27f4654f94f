"""A session of another user answers as one that does not exist, whatever is asked of it:
every method that names a session, from the contract.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf import descriptor_pool, message_factory
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from retinue.client.settings import read_ca
from retinue.manager.listeners import SERVICES
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What else a request needs to be right, by field.
PUBLIC_KEY = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
NEEDED: dict[str, Any] = {"files": [{"path": "x"}], "port": "8000", "app": "x", "public_key": PUBLIC_KEY}


def naming_sessions() -> list[tuple[Any, dict[str, Any]]]:
    """Methods with a request in which `SESSION` stands for a session's id."""
    pool = descriptor_pool.Default()
    found = []
    for service in SERVICES:
        for method in pool.FindServiceByName(service).methods:
            inner = {field.name: field.message_type for field in method.input_type.fields}
            places = {"": method.input_type, **{name: kind for name, kind in inner.items() if kind is not None}}
            for place, kind in places.items():
                names = {field.name for field in kind.fields if field.message_type is None}
                if name := next((name for name in ("session", "session_id") if name in names), None):
                    fields = {field.name for field in kind.fields if field.enum_type is None}
                    content = {name: "SESSION", **{key: value for key, value in NEEDED.items() if key in fields}}
                    found.append((method, {place: content} if place else content))
    return found


METHODS = naming_sessions()


async def answer(
    channel: grpc.aio.Channel, token: str, method: Any, content: dict[str, Any], session: str
) -> tuple[str, ...]:
    """Code, reason and words, without the session's id."""
    request = message_factory.GetMessageClass(method.input_type)(
        **{
            key: {name: session if value == "SESSION" else value for name, value in given.items()}
            if isinstance(given, dict)
            else (session if given == "SESSION" else given)
            for key, given in content.items()
        }
    )
    kinds = {(False, False): "unary_unary", (False, True): "unary_stream", (True, True): "stream_stream"}
    made = getattr(channel, kinds[method.client_streaming, method.server_streaming])(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )

    async def steps() -> AsyncIterator[Any]:
        yield request

    call = made(
        steps() if method.client_streaming else request, metadata=(("authorization", f"Bearer {token}"),), timeout=NEVER
    )
    try:
        if method.server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)
        info = ErrorInfo()
        assert status is not None
        assert any(detail.Unpack(info) for detail in status.details)
        return error.code().name, info.reason, status.message.replace(session, "SESSION")
    return ("OK",)


@pytest.mark.attack("sessions-of-others")
async def test_every_method_that_names_a_session(client: Client, cluster: Cluster) -> None:
    assert {"Attach", "ExecuteCode", "OpenPort", "UploadFiles", "StreamLogs", "WatchSessions"} <= {
        m.name for m, _ in METHODS
    }
    await client.users.create("neighbour", projects={"default": "member"})
    token = (await client.tokens.create(user="neighbour")).secret
    session = await client.sessions.create(type="interactive", slots={"cpu": "0.1", "mem": "64m"}, termination_grace=0)
    settings = cluster.settings
    credentials = grpc.ssl_channel_credentials(read_ca(settings.ca))
    options = [("grpc.ssl_target_name_override", "manager.retinue")]
    try:
        await session.wait("RUNNING", timeout=NEVER)
        async with grpc.aio.secure_channel(settings.endpoint, credentials, options) as channel:
            for method, content in METHODS:
                hers = await answer(channel, token, method, content, session.id)
                nobodys = await answer(channel, token, method, content, str(uuid.uuid4()))
                assert hers == nobodys, method.name
                assert hers[0] == "NOT_FOUND", (method.name, hers)
        await session.refresh()
        assert session.state == "RUNNING", "nothing came of it"
    finally:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)
