"""What a stream of requests begins with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from google.protobuf.message import Message

from retinue.manager.server import errors

START_SECONDS = 10.0

Request = TypeVar("Request", bound=Message)


async def first_request(coming: Awaitable[Request], field: str) -> Request:
    """The first request, by `anext` of the stream: it has to come within START_SECONDS and to have the field. Raises InvalidRequest."""
    try:
        async with asyncio.timeout(START_SECONDS):
            request = await coming
    except (StopAsyncIteration, TimeoutError):
        raise errors.InvalidRequest([(field, "must come first")]) from None
    if not request.HasField(field):
        raise errors.InvalidRequest([(field, "must come first")])
    return request
