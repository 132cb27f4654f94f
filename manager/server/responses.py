"""Passes responses from the task of a handler to the task of its call, which alone writes to the call."""

from __future__ import annotations

import asyncio
import collections
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn

from retinue.manager.server.calls import HandlerAbortedError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import grpc


class Relay:
    """Hands responses from the task of a handler to the task of its call, one at a time."""

    def __init__(self) -> None:
        self._responses: collections.deque[Any] = collections.deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task whose end counts as a change."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._changed.set())
        return task

    @property
    def waiting(self) -> bool:
        """Returns whether a response waits to be taken."""
        return bool(self._responses)

    def take(self) -> Any:
        """Returns the response that waits."""
        self._room.set()
        return self._responses.popleft()

    async def put(self, response: Any) -> None:
        """Leaves a response, and returns when it was taken."""
        self._responses.append(response)
        self._changed.set()
        self._room.clear()
        await self._room.wait()

    async def changed(self) -> None:
        """Returns when something has changed since the last call."""
        await self._changed.wait()
        self._changed.clear()


class HandlerContext:
    """Replaces the library's context for a handler: all that one may do there."""

    def __init__(self, relay: Relay | None = None) -> None:
        self._relay = relay

    async def write(self, response: Any) -> None:
        """Sends a response."""
        if self._relay is None:
            raise TypeError("a call with one response returns it")
        await self._relay.put(response)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """Ends the call. Raises HandlerAbortedError, for the layers around the handler."""
        raise HandlerAbortedError(code, details)


async def produce(behaviour: Any, request: Any, relay: Relay) -> None:
    """Runs a handler of a stream to its end."""
    responses = behaviour(request, HandlerContext(relay))
    if inspect.isawaitable(responses):
        # It writes to the context by itself.
        await responses
        return
    async with aclosing(responses):
        async for response in responses:
            await relay.put(response)


async def end(*tasks: asyncio.Task[None]) -> None:
    """Cancels tasks and returns when the last has ended, also when the caller is cancelled meanwhile;
    how they ended was for others to ask.
    """
    cancelled = False
    for task in tasks:
        task.cancel()
    while undone := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(undone)
        except asyncio.CancelledError:
            cancelled = True
    for task in tasks:
        if not task.cancelled():
            task.exception()
    if cancelled:
        raise asyncio.CancelledError
