"""What is known of a call that the server ended while requests were on their way to it: all that the server said."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio
import pytest

from retinue.rpc import bidi_call
from retinue.rpc.bidi_call import UNSENT, BidiCall
from tests.support.ended_calls import DETAILS, RESPONSES, FailsLate, served
from tests.support.eventually import NEVER

CODES = ("PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED")


def ended(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str | None]:
    return error.code(), error.details()


async def written(call: Any) -> None:
    """Writes until that fails."""
    while True:
        await call.write(b"x" * 1000)


async def rest(call: BidiCall[bytes, bytes]) -> list[bytes]:
    """Reads to an end without an error."""
    found = []
    while (response := await call.read()) is not None:
        found.append(response)
    return found


async def hide_status(plain: Any) -> None:
    """Has a request of a call that the server has ended fail, of which nothing was read. The status comes behind what
    is not read, so that the library does not know it yet.
    """
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await written(plain)
    assert ended(caught.value) == (grpc.StatusCode.INTERNAL, UNSENT)


@pytest.mark.parametrize("code", CODES)
async def test_a_request_that_fails_before_the_status_is_known_reports_it(code: str) -> None:
    status = (grpc.StatusCode[code], DETAILS)
    async with served() as channel:
        plain: Any = channel.stream_stream(f"/ANSWERED/{code}")()
        await hide_status(plain)
        # What `read` says from then on: neither the responses nor the status.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await plain.read()
        assert ended(caught.value) == (grpc.StatusCode.INTERNAL, UNSENT)

        call = BidiCall[bytes, bytes](channel.stream_stream(f"/ANSWERED/{code}")())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await written(call)
        assert ended(caught.value) == status
        assert [await call.read() for _ in RESPONSES] == list(RESPONSES)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert ended(caught.value) == status
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.write(b"x")
            assert ended(caught.value) == status
        await call.end_requests()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("how", ["AT_ONCE", "ANSWERED"])
async def test_a_request_that_fails_behind_the_status_does_not_hide_it(how: str, code: str) -> None:
    status = (grpc.StatusCode[code], DETAILS)
    async with served() as channel:
        inner: Any = channel.stream_stream(f"/{how}/{code}")()
        call = BidiCall[bytes, bytes](inner)
        if how == "ANSWERED":
            await call.write(b"x")
            assert [await call.read() for _ in RESPONSES] == list(RESPONSES)
        inner._cython_call = FailsLate(inner._cython_call)  # noqa: SLF001
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.write(b"x")
        assert ended(caught.value) == status
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert ended(caught.value) == status


async def test_an_end_without_an_error_is_no_error() -> None:
    async with served() as channel:
        await hide_status(channel.stream_stream("/ANSWERED/OK")())
        call = BidiCall[bytes, bytes](channel.stream_stream("/ANSWERED/OK")())
        with pytest.raises(asyncio.InvalidStateError, match="the server has ended the call"):
            await written(call)
        assert await rest(call) == list(RESPONSES)

        inner: Any = channel.stream_stream("/AT_ONCE/OK")()
        call = BidiCall(inner)
        inner._cython_call = FailsLate(inner._cython_call)  # noqa: SLF001
        with pytest.raises(asyncio.InvalidStateError, match="the server has ended the call"):
            await call.write(b"x")
        assert await rest(call) == []


async def test_a_call_that_never_gets_a_status_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bidi_call, "SETTLE_SECONDS", 0.01)
    async with served() as channel:
        inner: Any = channel.stream_stream("/ANSWERED/ABORTED")()
        call = BidiCall[bytes, bytes](inner)
        # As of a request that the library refuses: the call goes on, of which the library says that it has ended.
        inner._cython_call.set_internal_error("refused")  # noqa: SLF001
        assert ended(await call.status()) == (grpc.StatusCode.INTERNAL, UNSENT)


async def test_a_request_of_a_call_that_is_cancelled_before_it_began_is_given_up() -> None:
    """No server ever greets, so that nothing of the call is sent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}") as channel:
            plain: Any = channel.stream_stream("/ANSWERED/OK")()
            call = BidiCall[bytes, bytes](plain)
            writing = asyncio.create_task(call.write(b"x"))
            await asyncio.sleep(0.05)
            assert not writing.done()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(writing, NEVER)
