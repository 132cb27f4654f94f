"""The agent's side of calls: nothing of a call is touched after its end, and a handler ends with its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from agent.api.guard import MANAGER_IDENTITY, CallEndedError, Guard, OpenCall


class Context:
    """The library's context: to touch it after the end of its call ends the process, here the test."""

    def __init__(self, writes: int) -> None:
        """After so many writes the caller has gone."""
        self.over = False
        self.touched_late: list[str] = []
        self._writes = writes

    def touch(self, what: str) -> None:
        if self.over:
            self.touched_late.append(what)

    def auth_context(self) -> dict[str, list[bytes]]:
        self.touch("auth_context")
        return {"x509_subject_alternative_name": [MANAGER_IDENTITY]}

    async def write(self, response: Any) -> None:
        self.touch("write")
        await asyncio.sleep(0)
        self._writes -= 1
        if self._writes < 0:
            raise grpc.aio.InternalError


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


async def guarded(behavior: Any) -> Any:
    """A handler with the guard around it, as the library runs it."""

    async def continuation(details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(behavior)

    handler: Any = await Guard().intercept_service(continuation, None)  # type: ignore[arg-type]  # not looked at
    assert asyncio.iscoroutinefunction(handler.stream_stream)
    return handler.stream_stream


@pytest.mark.parametrize("cancelled_after", [None, 1, 2, 3, 5, 8, 13])
async def test_a_stream_leaves_nothing_behind(cancelled_after: int | None) -> None:
    context = Context(writes=20)
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

    task = asyncio.create_task((await guarded(handler))(Requests(context), context))
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


async def test_nothing_passes_to_a_call_that_has_ended() -> None:
    context = Context(writes=5)
    call = OpenCall(context)
    requests = call.requests(Requests(context))
    with call.until_ended():
        assert await anext(requests) == b"request"
    context.over = True
    for late in (call.write(b""), anext(requests)):
        with pytest.raises(CallEndedError):
            await late
    assert not context.touched_late
