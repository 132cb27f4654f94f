"""What a stream of requests begins with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from retinue.agent.api.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Awaitable

START_TIMEOUT = 10.0
"""Seconds."""

Request = TypeVar("Request", bound=Message)


async def first_request(coming: Awaitable[Request], field: str) -> Request:
    """The first request, by `anext` of the stream: it has to come within START_TIMEOUT and to have the field; else INVALID_ARGUMENT."""
    try:
        async with asyncio.timeout(START_TIMEOUT):
            request = await coming
    except (StopAsyncIteration, TimeoutError) as error:
        raise invalid(field, "must come first") from error
    if not request.HasField(field):
        raise invalid(field, "must come first")
    return request
