"""How a stream ended, when the first that shows it is a request that could not be sent."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from retinue.client.errors import CallError, Unavailable, from_rpc

_UNSENT = "Internal error from Core"
# What grpc.aio says of a call one of whose requests could not be sent, until it knows how the call ended.
_SETTLE_SECONDS, _SETTLE_TRIES = 1.0, 100


async def outcome(call: Any, error: grpc.aio.AioRpcError, identity: str) -> CallError:
    """How the call ended: a request that could no longer be sent hides it until the answer is in, a moment later."""
    for _ in range(_SETTLE_TRIES):
        if error.details() != _UNSENT:
            return from_rpc(error, identity)
        await asyncio.sleep(_SETTLE_SECONDS / _SETTLE_TRIES)
        before, after = await call.initial_metadata(), await call.trailing_metadata()
        error = grpc.aio.AioRpcError(await call.code(), before, after, await call.details())
    return Unavailable("the connection broke", code=grpc.StatusCode.UNAVAILABLE, request_id=identity)
