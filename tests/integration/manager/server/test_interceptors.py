"""What surrounds every call, for all four kinds of handlers: errors, deadlines, ends of streams, cleaning up."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import re
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from retinue.manager.domain import errors
from retinue.manager.domain.errors import ReaderTooSlow
from retinue.manager.server import interceptors
from retinue.manager.server.authentication import Authenticator
from retinue.manager.server.connection_watch import ConnectionCalls
from retinue.manager.server.interceptors import CallInterceptor, current_principal
from retinue.manager.store.postgres.database import StoreUnavailable
from retinue.rpc.logs import TextFormatter
from tests.integration.manager.rig import Service, bearer, failure, taken_apart
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode
SECRET = "the secret of the day"  # to be looked for
# Real names, since the table decides who may call; what they do is up to each test.
UNARY, SERVER_STREAM = (
    "/retinue.manager.v1.SessionService/GetSession",
    "/retinue.manager.v1.SessionService/WatchSessions",
)
CLIENT_STREAM, BOTH = "/retinue.manager.v1.FleetService/GetAgent", "/retinue.manager.v1.KernelService/StreamLogs"
ADMIN = "/retinue.manager.v1.FleetService/DrainAgent"
OUTSIDE_THE_TABLE = "/retinue.manager.v1.SessionService/Undeclared"


@dataclass
class Rig:
    """A server whose handlers are given by the test, and one caller."""

    # Untyped: it carries plain bytes.
    channel: Any
    stopping: asyncio.Event
    metadata: tuple[tuple[str, str], ...]
    behaviours: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def unary(self, method: str = UNARY, **options: Any) -> Any:
        return self.channel.unary_unary(method)(b"", metadata=self.metadata, **options)

    def stream(self, method: str = SERVER_STREAM) -> Any:
        return self.channel.unary_stream(method)(b"", metadata=self.metadata)

    def all_kinds(self) -> list[Any]:
        """One call of each kind, as what to await for its first response or its failure."""
        feed = [b"", b""]
        return [
            self.unary(),
            self.stream().read(),
            self.channel.stream_unary(CLIENT_STREAM)(iter(feed), metadata=self.metadata),
            self.channel.stream_stream(BOTH)(iter(feed), metadata=self.metadata).read(),
        ]

    def fail_with(self, error: BaseException) -> None:
        async def answer(request: Any, context: Any) -> bytes:
            raise error

        async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
            raise error
            yield b""

        self.behaviours |= {UNARY: answer, CLIENT_STREAM: answer, SERVER_STREAM: stream, BOTH: stream}


@pytest_asyncio.fixture(loop_scope="session")
async def rig(service: Service) -> AsyncIterator[Rig]:
    stopping = asyncio.Event()
    behaviours: dict[str, Callable[..., Any]] = {}
    makers: dict[str, Callable[..., Any]] = {
        UNARY: grpc.unary_unary_rpc_method_handler,
        ADMIN: grpc.unary_unary_rpc_method_handler,
        OUTSIDE_THE_TABLE: grpc.unary_unary_rpc_method_handler,
        SERVER_STREAM: grpc.unary_stream_rpc_method_handler,
        CLIENT_STREAM: grpc.stream_unary_rpc_method_handler,
        BOTH: grpc.stream_stream_rpc_method_handler,
    }

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            method = details.method
            return makers[method](behaviours[method]) if method in makers else None

    authenticator = Authenticator(service.database, monotonic=time.monotonic, clock=lambda: dt.datetime.now(dt.UTC))
    layers = CallInterceptor(authenticator, stopping, ConnectionCalls(), recheck_seconds=0.2)
    server = grpc.aio.server(interceptors=[layers])
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Rig(channel, stopping, bearer(await service.user("ada")), behaviours)
    finally:
        await server.stop(0)


async def test_unexpected_exceptions_never_leak(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.fail_with(ValueError(SECRET))
    for call in rig.all_kinds():
        failed = await failure(call)
        assert (failed.code, failed.reason) == (Code.INTERNAL, "INTERNAL")
        assert SECRET not in failed.text
        assert "ValueError" not in failed.text
        # The number leads to the whole story in the log.
        (record,) = [record for record in caplog.records if failed.metadata["incident"] in record.getMessage()]
        assert record.levelno == logging.ERROR
        assert record.exc_info is not None
        assert SECRET in str(record.exc_info[1])


@pytest.mark.parametrize(
    ("raised", "code", "reason"),
    [
        (errors.NotFound("session", "x"), Code.NOT_FOUND, "NOT_FOUND"),
        (StoreUnavailable("10.0.0.5 is down"), Code.UNAVAILABLE, "UNAVAILABLE"),
        (ReaderTooSlow(7), Code.RESOURCE_EXHAUSTED, "READER_TOO_SLOW"),
        (TimeoutError("inner"), Code.INTERNAL, "INTERNAL"),
        (LookupError(), Code.INTERNAL, "INTERNAL"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
async def test_errors_of_all_kinds(rig: Rig, raised: Exception, code: grpc.StatusCode, reason: str) -> None:
    rig.fail_with(raised)
    for call in rig.all_kinds():
        failed = await failure(call)
        assert (failed.code, failed.reason) == (code, reason)
        assert "10.0.0.5" not in failed.text


async def test_an_error_after_responses(rig: Rig) -> None:
    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        for number in range(3):
            yield bytes([number])
        raise ValueError(SECRET)

    rig.behaviours[SERVER_STREAM] = stream
    call = rig.stream()
    assert [await call.read() for _ in range(3)] == [b"\0", b"\1", b"\2"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert taken_apart(caught.value).reason == "INTERNAL"


async def test_responses_of_all_kinds(rig: Rig) -> None:
    async def answer(request: Any, context: Any) -> bytes:
        return current_principal().name.encode()

    async def collect(request: Any, context: Any) -> bytes:
        return b"".join([part async for part in request])

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        for number in range(200):
            # What is entered in the handler's task is left in it.
            async with asyncio.timeout(NEVER):
                yield bytes([number])

    async def echo(request: Any, context: Any) -> AsyncIterator[bytes]:
        async for part in request:
            yield part * 2

    async def writes(request: Any, context: Any) -> None:
        for number in range(3):
            await context.write(bytes([number]))

    rig.behaviours |= {UNARY: answer, CLIENT_STREAM: collect, SERVER_STREAM: stream, BOTH: echo}
    assert await rig.unary() == b"ada"
    assert await rig.channel.stream_unary(CLIENT_STREAM)(iter([b"a", b"b"]), metadata=rig.metadata) == b"ab"
    assert [part async for part in rig.stream()] == [bytes([number]) for number in range(200)]
    both = rig.channel.stream_stream(BOTH)(iter([b"a", b"b"]), metadata=rig.metadata)
    assert [part async for part in both] == [b"aa", b"bb"]
    rig.behaviours[SERVER_STREAM] = writes
    assert [part async for part in rig.stream()] == [b"\0", b"\1", b"\2"]


async def test_default_deny(rig: Rig) -> None:
    async def answer(request: Any, context: Any) -> bytes:
        return b"reached"

    rig.behaviours |= {OUTSIDE_THE_TABLE: answer, ADMIN: answer}
    for method in (OUTSIDE_THE_TABLE, ADMIN):
        denied = await failure(rig.unary(method))
        assert (denied.code, denied.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")


async def test_streams_end_when_the_server_stops(rig: Rig) -> None:
    left = []

    async def silent(request: Any, context: Any) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            left.append(b"stream")

    async def writes(request: Any, context: Any) -> None:
        try:
            await context.write(b"first")
            await asyncio.Event().wait()
        finally:
            left.append(b"writer")

    for behaviour in (silent, writes):
        rig.stopping.clear()
        rig.behaviours[SERVER_STREAM] = behaviour
        calls = [rig.stream() for _ in range(10)]
        for call in calls:
            assert await call.read() == b"first"
        rig.stopping.set()
        # None of them would ever end by itself.
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert taken_apart(caught.value).reason == "UNAVAILABLE"
    assert left == [b"stream"] * 10 + [b"writer"] * 10


@pytest.mark.parametrize("reading", [True, False], ids=["reading", "not reading"])
async def test_a_handler_cleans_up_when_its_caller_goes(
    rig: Rig, reading: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger=interceptors.__name__)
    cleaned, blocked = asyncio.Event(), asyncio.Event()
    produced = 0

    async def endless(request: Any, context: Any) -> AsyncIterator[bytes]:
        nonlocal produced
        try:
            while True:
                if reading and produced == 3:
                    blocked.set()
                    await asyncio.Event().wait()
                produced += 1
                yield b"x" * 100_000
        finally:
            # Cleaning up may take time.
            await asyncio.sleep(0)
            cleaned.set()

    rig.behaviours[SERVER_STREAM] = endless
    call = rig.stream()
    for _ in range(3 if reading else 1):
        await call.read()
    if reading:
        await blocked.wait()
    call.cancel()
    await cleaned.wait()
    # A reader that does not read holds its stream up.
    assert produced < 500
    assert await eventually(lambda: cancelled(caplog)) == [logging.DEBUG]


def cancelled(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Severities of the lines about calls that their callers left."""
    return [record.levelno for record in caplog.records if " CANCELLED " in record.getMessage()]


async def test_a_unary_handler_cleans_up_when_its_caller_goes(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=interceptors.__name__)
    entered, cleaned = asyncio.Event(), asyncio.Event()

    async def answer(request: Any, context: Any) -> bytes:
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        return b""

    rig.behaviours[UNARY] = answer
    call = rig.unary()
    await entered.wait()
    call.cancel()
    await cleaned.wait()
    assert await eventually(lambda: cancelled(caplog)) == [logging.INFO]


@pytest.mark.attack("odd-deadlines")
async def test_calls_without_a_deadline_get_ours(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = asyncio.Event()
    scopes: list[tuple[float, asyncio.Timeout]] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        scopes.append((seconds, asyncio.timeout(seconds)))
        return scopes[-1][1]

    async def answer(request: Any, context: Any) -> bytes:
        with contextlib.ExitStack() as stack:
            stack.callback(cleaned.set)
            # All of its time passes now.
            scopes[-1][1].reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(interceptors, "asyncio", SimpleNamespace(**{**vars(asyncio), "timeout": timeout}))

    rig.behaviours[UNARY] = answer
    choices: list[dict[str, Any]] = [{}, {"timeout": 3600.0 * 24 * 365 * 100}]
    for options in choices:
        cleaned.clear()
        failed = await failure(rig.unary(**options))
        assert (failed.code, failed.reason) == (Code.DEADLINE_EXCEEDED, "DEADLINE")
        assert cleaned.is_set()
        assert scopes[-1][0] == interceptors.UNARY_SECONDS
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.unary(timeout=0.0)
    assert caught.value.code() is Code.DEADLINE_EXCEEDED


def request_id_of(trailers: Any) -> str:
    """The id in the trailers of an answer, which has to be there once."""
    (found,) = [value for key, value in trailers if key == "x-request-id"]
    return str(found)


async def test_every_error_carries_a_request_id(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def end(request: Any, context: Any) -> bytes:
        await context.abort(Code.UNIMPLEMENTED, "of a library")
        return b""

    for error in (errors.NotFound("session", "x"), RuntimeError("unexpected")):
        rig.fail_with(error)
        caplog.clear()
        caplog.handler.setFormatter(TextFormatter())
        for call in rig.all_kinds():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert request_id_of(caught.value.trailing_metadata())
        if isinstance(error, RuntimeError):
            # The line with the traceback can be found by what the caller has.
            assert f", request {request_id_of(caught.value.trailing_metadata())}" in caplog.text
    rig.behaviours[UNARY] = end
    unknown = "/retinue.manager.v1.NoService/Nothing"
    for call in (rig.unary(), rig.unary(unknown), rig.stream(unknown).read()):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is Code.UNIMPLEMENTED
        assert request_id_of(caught.value.trailing_metadata())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.channel.unary_unary(UNARY)(b"")
    assert caught.value.code() is Code.UNAUTHENTICATED
    assert request_id_of(caught.value.trailing_metadata())


async def test_request_ids(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: Any, context: Any) -> bytes:
        return b""

    rig.behaviours[UNARY] = answer
    caplog.set_level(logging.DEBUG, logger=interceptors.__name__)
    caplog.handler.setFormatter(TextFormatter())
    sent = []
    for given in ("abc-1", "bad id\x00".replace("\x00", "!"), "x" * 65):
        call = rig.channel.unary_unary(UNARY)(b"", metadata=(*rig.metadata, ("x-request-id", given)))
        await call
        sent.append(request_id_of(await call.trailing_metadata()))
    call = rig.unary()
    await call
    sent.append(request_id_of(await call.trailing_metadata()))
    seen = re.findall(r", request (\S+)", caplog.text)
    assert seen == sent
    assert seen[0] == "abc-1"
    assert len(set(seen)) == 4
    assert all(len(found) == 16 for found in seen[1:])
    assert rig.metadata[0][1] not in caplog.text
