"""Reads the request that a stream of requests begins with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from retinue.rpc.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable

START_SECONDS = 10.0

Request = TypeVar("Request", bound=Message)


async def first_request(coming: Awaitable[Request], field: str) -> Request:
    """Returns the first request, `anext` of the stream. Raises InvalidRequest unless it
    comes within START_SECONDS and has the field.
    """
    try:
        async with asyncio.timeout(START_SECONDS):
            request = await coming
    except (StopAsyncIteration, TimeoutError):
        raise InvalidRequest([(field, "must come first")]) from None
    if not request.HasField(field):
        raise InvalidRequest([(field, "must come first")])
    return request
