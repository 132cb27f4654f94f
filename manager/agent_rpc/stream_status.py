"""How an agent ended a call, which grpc.aio may hide."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio

UNSENT = "Internal error from Core"
"""What grpc.aio says of a call one of whose requests could not be sent."""
SETTLE_SECONDS, SETTLE_TRIES = 1.0, 100
"""From the last response to the status behind it."""

_Value = TypeVar("_Value")


class Ending:
    """Notes the status of a call.

    A request on its way when the agent ends the call cannot be sent; grpc.aio then tells a status of its own, until the agent's
    comes, or for good if that came first.
    """

    def __init__(self, call: Any) -> None:
        """To be made with the call."""
        self._call = call
        self._status: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    async def raise_error(self) -> None:
        """Raises the error that the call ended with, if any; the responses have ended."""
        # Also waits for the first status, if there is none yet.
        await self._call.code()
        for _ in range(SETTLE_TRIES):
            if self._status is not None:
                break
            await asyncio.sleep(SETTLE_SECONDS / SETTLE_TRIES)
            self._note(self._call)
        status = self._status or _status(self._call)
        if status.code() is not grpc.StatusCode.OK:
            raise status

    def _note(self, call: Any) -> None:
        """Is called once by the call, with the first status there is."""
        if _now(call.details()) != UNSENT:
            self._status = _status(call)


def _status(call: Any) -> grpc.aio.AioRpcError:
    before, after = _now(call.initial_metadata()), _now(call.trailing_metadata())
    return grpc.aio.AioRpcError(_now(call.code()), before, after, _now(call.details()))


def _now(coroutine: Coroutine[Any, Any, _Value]) -> _Value:
    """What a coroutine returns that has nothing to wait for: the call is over."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: _Value = done.value
        return value
    coroutine.close()
    raise AssertionError("a call that is over knows its status")
