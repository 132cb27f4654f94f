"""What a call says is read once, and nothing touches a call after its end:
with a context that notices when it is touched then.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from retinue.manager.identity.principal import Kind, Principal
from retinue.manager.server.authentication import Authenticator
from retinue.manager.server.calls import read_call
from retinue.manager.server.connection_watch import ConnectionCalls
from retinue.manager.server.interceptors import CallInterceptor
from retinue.manager.server.responses import HandlerContext
from retinue.rpc.open_call import CallEndedError, OpenCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

METHOD = "/retinue.manager.v1.SessionService/WatchSessions"


class Context:
    """The library's context: to touch it after the end of its call ends the process, here the test."""

    def __init__(self, *, writes: int = 1_000_000, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        """After so many writes the caller has gone."""
        self.over = False
        self.touched_late: list[str] = []
        self._writes = writes
        self._metadata = metadata

    def touch(self, what: str) -> None:
        if self.over:
            self.touched_late.append(what)

    def peer(self) -> str:
        self.touch("peer")
        return "ipv4:127.0.0.1:4711"

    def auth_context(self) -> dict[str, list[bytes]]:
        self.touch("auth_context")
        return {"x509_subject_alternative_name": [b"spiffe://retinue/agent/n1"]}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        self.touch("invocation_metadata")
        return self._metadata

    def time_remaining(self) -> float | None:
        self.touch("time_remaining")
        return 10.0

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self.touch("set_trailing_metadata")

    async def write(self, response: Any) -> None:
        self.touch("write")
        await asyncio.sleep(0)
        self._writes -= 1
        if self._writes < 0:
            raise grpc.aio.InternalError

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        self.touch("abort")
        raise grpc.aio.AbortError


class Requests:
    """The library's stream of requests."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> bytes:
        self._context.touch("read")
        await asyncio.sleep(0)
        return b"request"


async def around(authenticator: Authenticator, handler: Any) -> Any:
    """The layers around a handler, as the library runs them."""

    async def continuation(details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(handler)

    details: Any = SimpleNamespace(method=METHOD)
    layers = CallInterceptor(authenticator, asyncio.Event(), ConnectionCalls(), recheck_seconds=0.0)
    found: Any = await layers.intercept_service(continuation, details)
    # A coroutine, of which nothing is left to the garbage collector.
    assert asyncio.iscoroutinefunction(found.stream_stream)
    return found.stream_stream


class Known(Authenticator):
    """Authenticates every caller."""

    def __init__(self) -> None:
        pass

    async def authenticate(self, call: Any) -> Principal:
        await asyncio.sleep(0)
        return Principal(Kind.USER, "ada")


def test_a_call_is_read_once() -> None:
    context: Any = Context(metadata=(("x-request-id", "abc-1"),))
    call = read_call(METHOD, context)
    context.over = True
    assert (call.method, call.peer, call.address, call.request_id) == (
        METHOD,
        "ipv4:127.0.0.1:4711",
        "127.0.0.1",
        "abc-1",
    )
    assert call.identities == {"x509_subject_alternative_name": (b"spiffe://retinue/agent/n1",)}
    assert call.remaining(call.deadline or 0.0) == 0.0
    assert not context.touched_late


async def test_nothing_passes_to_a_call_that_has_ended() -> None:
    context: Any = Context()
    opened = OpenCall(context)
    requests = opened.requests(Requests(context))
    with opened.until_ended():
        await opened.write(b"")
        assert await anext(requests) == b"request"
    context.over = True
    for late in (opened.write(b""), opened.abort(grpc.StatusCode.INTERNAL, ""), anext(requests)):
        with pytest.raises(CallEndedError):
            await late
    assert not context.touched_late


async def test_a_write_that_fails_is_a_call_that_was_cancelled() -> None:
    opened = OpenCall(Context(writes=0))
    with pytest.raises(asyncio.CancelledError), opened.until_ended():
        await opened.write(b"")


def test_handlers_get_nothing_that_touches_the_call() -> None:
    offered = {name for name in dir(HandlerContext) if not name.startswith("_")}
    assert offered == {"write", "abort"}


@pytest.mark.parametrize("cancelled_after", [None, 1, 2, 3, 5, 8, 13, 21, 34])
async def test_a_stream_leaves_nothing_behind(cancelled_after: int | None) -> None:
    """Its caller goes at any moment, or when a response is sent; its handler reads, cleans up slowly,
    and the rights are looked at.
    """
    context: Any = Context(writes=20)
    before = asyncio.all_tasks()

    async def handler(requests: AsyncIterator[bytes], handling: Any) -> AsyncIterator[bytes]:
        async def take() -> None:
            async for _ in requests:
                pass

        taking = asyncio.create_task(take())
        try:
            while True:
                yield b"response"
        finally:
            for _ in range(50):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    serve = await around(Known(), handler)
    task = asyncio.create_task(serve(Requests(context), context))
    if cancelled_after is not None:
        for _ in range(cancelled_after):
            await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    context.over = True
    for _ in range(200):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert not context.touched_late


async def test_the_look_at_rights_ends_before_the_handler_does() -> None:
    """It is cancelled first: a handler may take long to clean up."""
    looks: list[str] = []

    class Looking(Known):
        async def authenticate(self, call: Any) -> Principal:
            looks.append(call.method)
            return await super().authenticate(call)

    # Before the handler has cleaned up, and after: its own failure would be no one's.
    seen: list[int] = []

    async def handler(request: bytes, handling: Any) -> AsyncIterator[bytes]:
        try:
            yield b"only"
            await asyncio.Event().wait()
        finally:
            seen.append(len(looks))
            for _ in range(50):
                await asyncio.sleep(0)
            seen.append(len(looks))

    context: Any = Context()
    task = asyncio.create_task((await around(Looking(), handler))(Requests(context), context))
    while len(looks) < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    before, after = seen
    assert after == before


@pytest.mark.parametrize("package", ["retinue.manager", "retinue.agent"])
def test_grpc_is_loaded_without_its_handlers_around_forks(package: str) -> None:
    check = (
        f"import os, sys, {package}; assert 'grpc' not in sys.modules; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    )
    environment = os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "0"
