"""Calls: credentials, errors, what is tried again, pages."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import MethodDescriptorProto, MethodOptions
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from docs.generator import ROOT
from docs.generator.protos import Contract
from retinue.client.aio import Client, InvalidRequest, ServerFault, Unavailable, UsageError
from retinue.client.transport.channel import parse_endpoint, service_config
from retinue.manager.v1 import session_pb2 as pb
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.manager.v1 import session_service_pb2_grpc as service_grpc
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.unit.client.journal import refuse, session

Connect = Callable[[Callable[[grpc.aio.Server], None]], Awaitable[Client]]


class Creating(service_grpc.SessionServiceServicer):
    """Accepts sessions, after refusing as often as asked."""

    def __init__(self, refusals: int = 0, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        self.refusals = refusals
        self.code = code
        self.requests: list[service_pb.CreateSessionRequest] = []
        self.metadata: list[dict[str, str | bytes]] = []

    async def CreateSession(
        self, request: service_pb.CreateSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> service_pb.CreateSessionResponse:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata() or ()))
        if len(self.requests) <= self.refusals:
            await refuse(context, self.code, "UNAVAILABLE", error_details_pb2.RetryInfo(retry_delay=Duration(nanos=5)))
        return service_pb.CreateSessionResponse(session=session(), position=JournalPosition(revision=7))


def _register(servicer: service_grpc.SessionServiceServicer) -> Callable[[grpc.aio.Server], None]:
    return lambda server: service_grpc.add_SessionServiceServicer_to_server(servicer, server)


class Crowded(Creating):
    """Says that the caller makes too many calls, as often as asked."""

    async def GetSession(
        self, request: service_pb.GetSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> service_pb.GetSessionResponse:
        self.refusals -= 1
        if self.refusals >= 0:
            retry = error_details_pb2.RetryInfo(retry_delay=Duration(nanos=5_000_000))
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", retry)
        return service_pb.GetSessionResponse(session=session(), position=JournalPosition(revision=7))


async def test_a_call_that_was_one_too_many_is_repeated_after_the_delay(connect: Connect) -> None:
    servicer = Crowded(refusals=5)
    client = await connect(_register(servicer))
    assert (await client.sessions.get("x")).revision == 7
    assert servicer.refusals == -1


async def test_a_create_is_tried_again_with_the_same_request_id(connect: Connect) -> None:
    servicer = Creating(refusals=2)
    client = await connect(_register(servicer))
    created = await client.sessions.create(type="batch", command=["true"], cluster_mode="multi-node", cluster_size=2)
    assert (created.state, created.revision) == ("PENDING", 7)
    assert len(servicer.requests) == 3
    assert len({request.request_id for request in servicer.requests}) == 1
    uuid.UUID(servicer.requests[0].request_id)
    assert servicer.requests[0].spec.cluster_mode == pb.CLUSTER_MODE_MULTI_NODE


async def test_a_call_carries_the_token_and_an_id(connect: Connect) -> None:
    servicer = Creating()
    client = await connect(_register(servicer))
    await client.sessions.create(type="batch", command=["true"])
    assert servicer.metadata[0]["authorization"] == "Bearer secret"
    uuid.UUID(str(servicer.metadata[0]["x-request-id"]))


async def test_no_thread_of_grpc_asks_for_the_token(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel that is closed while one does waits for it, and it for the channel."""

    def never(*_: object, **__: object) -> grpc.CallCredentials:
        raise AssertionError("call credentials")

    for name in ("access_token_call_credentials", "metadata_call_credentials"):
        monkeypatch.setattr(grpc, name, never)
    servicer = Creating()
    client = await connect(_register(servicer))
    await client.sessions.create(type="batch", command=["true"])
    assert servicer.metadata[0]["authorization"] == "Bearer secret"


async def test_only_unavailable_is_tried_again(connect: Connect) -> None:
    servicer = Creating(refusals=9, code=grpc.StatusCode.INTERNAL)
    client = await connect(_register(servicer))
    with pytest.raises(ServerFault):
        await client.sessions.create(type="batch", command=["true"])
    assert len(servicer.requests) == 1


async def test_unavailable_is_raised_in_the_end(connect: Connect) -> None:
    servicer = Creating(refusals=99)
    client = await connect(_register(servicer))
    with pytest.raises(Unavailable) as caught:
        await client.sessions.create(type="batch", command=["true"])
    assert len(servicer.requests) == 4
    assert caught.value.retry_after == 5e-9


async def test_field_violations_are_reported(connect: Connect) -> None:
    class Strict(service_grpc.SessionServiceServicer):
        async def CreateSession(
            self, request: service_pb.CreateSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> service_pb.CreateSessionResponse:
            bad = error_details_pb2.BadRequest()
            bad.field_violations.add(field="spec.name", description="must not be X")
            bad.field_violations.add(field="spec.type", description="is missing")
            answered = error_details_pb2.RequestInfo(request_id="the-server-said")
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", bad, answered)
            return service_pb.CreateSessionResponse()

    client = await connect(_register(Strict()))
    with pytest.raises(InvalidRequest) as caught:
        await client.sessions.create(type="batch", command=["true"])
    error = caught.value
    assert (error.reason, error.request_id, error.code) == (
        "INVALID_FIELD",
        "the-server-said",
        grpc.StatusCode.INVALID_ARGUMENT,
    )
    assert [(v.field, v.description) for v in error.violations] == [
        ("spec.name", "must not be X"),
        ("spec.type", "is missing"),
    ]


async def test_a_manager_of_another_ca_is_not_trusted(serve: Callable[..., Awaitable[str]]) -> None:
    servicer = Creating()
    endpoint = await serve(_register(servicer))
    async with Client.connect(endpoint, token="secret") as client:
        with pytest.raises(Unavailable):
            await client.sessions.create(type="batch", command=["true"])
    assert servicer.requests == []


async def test_pages_are_one_list(connect: Connect) -> None:
    class Paging(service_grpc.SessionServiceServicer):
        def __init__(self) -> None:
            self.sizes: list[int] = []

        async def ListSessions(
            self, request: service_pb.ListSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> service_pb.ListSessionsResponse:
            del context
            self.sizes.append(request.page_size)
            start = int(request.page_token or 0)
            numbers = range(start, min(start + min(request.page_size, 3), 8))
            page = service_pb.ListSessionsResponse(position=JournalPosition(revision=5))
            for number in numbers:
                page.sessions.add(id=str(number))
            page.next_page_token = str(numbers.stop) if numbers.stop < 8 else ""
            return page

    servicer = Paging()
    client = await connect(_register(servicer))
    assert [found.id async for found in client.sessions.list()] == [str(number) for number in range(8)]
    assert [found.id async for found in client.sessions.list(limit=4)] == ["0", "1", "2", "3"]
    assert servicer.sizes[-2:] == [4, 1]


def test_only_calls_that_may_be_repeated_are() -> None:
    """A method is repeated when it reads, when its comment says so, or when its request carries a request_id."""
    config = json.loads(service_config())
    retried = {f"{name['service']}/{name['method']}" for name in config["methodConfig"][0]["name"]}
    contract = Contract.read(ROOT / "protos")
    services = {
        f"{file.descriptor.package}.{service.name}": list(file.methods(service))
        for file in contract.files
        for service, _ in file.services()
        if file.descriptor.package == "retinue.manager.v1"
    }
    # Calls of nodes, which repeat them by themselves.
    del services["retinue.manager.v1.EnrollmentService"]
    assert "retinue.manager.v1.EndpointService" in services

    def may_be_repeated(method: MethodDescriptorProto, comment: str) -> bool:
        _, request, _ = contract.message(method.input_type)
        return (
            method.options.idempotency_level == MethodOptions.NO_SIDE_EFFECTS
            or any(field.name == "request_id" for field in request.field)
            # Not "Not idempotent", nor what is so with an exception.
            or re.search(r"\bIdempotent[.:;]", comment) is not None
        )

    assert retried == {
        f"{service}/{method.name}"
        for service, methods in services.items()
        for method, comment in methods
        if may_be_repeated(method, comment)
    }
    assert config["methodConfig"][0]["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
    assert len(config["methodConfig"]) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("manager", ("manager", 7440)),
        ("manager:99", ("manager", 99)),
        ("https://10.0.0.1:7440/", ("10.0.0.1", 7440)),
        ("[fd00::1]:8", ("fd00::1", 8)),
        ("[fd00::1]", ("fd00::1", 7440)),
        ("fd00::1", ("fd00::1", 7440)),
    ],
)
def test_endpoints(text: str, expected: tuple[str, int]) -> None:
    assert parse_endpoint(text) == expected


@pytest.mark.parametrize(
    "text", ["", ":1", "host:", "host:0", "host:65536", "two words", "a/b", "host:x", "host:-1", "host:¹"]
)
def test_bad_endpoints(text: str) -> None:
    with pytest.raises(UsageError):
        parse_endpoint(text)


async def test_a_token_that_is_none_is_refused() -> None:
    for token in ("two words", "line\nbreak", "ümlaut"):
        with pytest.raises(UsageError):
            Client.connect("127.0.0.1:1", token=token)
