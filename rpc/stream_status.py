"""Finds the status that a server ended a call with, which grpc.aio may hide."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio

if TYPE_CHECKING:
    from collections.abc import Coroutine

UNSENT = "Internal error from Core"
"""Details that grpc.aio gives a call one of whose requests could not be sent."""
SETTLE_SECONDS, SETTLE_TRIES = 1.0, 100
"""Time from the last response to the status behind it."""

_Value = TypeVar("_Value")


class StreamStatus:
    """Records the first status of a call that is the server's.

    A request on its way when the server ends the call cannot be sent. grpc.aio then gives the call a status of its own,
    with the details UNSENT, until the server's comes, or for good if that came first.
    """

    def __init__(self, call: Any) -> None:
        """Must be made together with the call."""
        self._call = call
        self._status: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._record)

    async def wait(self) -> grpc.aio.AioRpcError:
        """Returns the status, once the responses have ended: the server's,
        or that of grpc.aio if the connection broke.
        """
        # Also waits for the first status, if there is none yet.
        await self._call.code()
        for _ in range(SETTLE_TRIES):
            if self._status is not None:
                break
            await asyncio.sleep(SETTLE_SECONDS / SETTLE_TRIES)
            self._record(self._call)
        return self._status or _status(self._call)

    def _record(self, call: Any) -> None:
        """Records the first status; called once by the call."""
        if _result(call.details()) != UNSENT:
            self._status = _status(call)


def _status(call: Any) -> grpc.aio.AioRpcError:
    before, after = _result(call.initial_metadata()), _result(call.trailing_metadata())
    return grpc.aio.AioRpcError(_result(call.code()), before, after, _result(call.details()))


def _result(coroutine: Coroutine[Any, Any, _Value]) -> _Value:
    """Returns the result of a coroutine that has nothing to wait for, as the call has ended."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: _Value = done.value
        return value
    coroutine.close()
    raise AssertionError("a call that has ended knows its status")
