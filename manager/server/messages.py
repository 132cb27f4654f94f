"""Requests as they arrive. They are read inside of a call, once it is known who makes it: strangers cannot have the manager read anything,
and what cannot be read is reported like any other error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from retinue.manager.server import errors
from retinue.manager.server.texts import with_nul

MAX_VIOLATIONS = 100
Reader: TypeAlias = Callable[[bytes], Any]


def read(message: bytes, reader: Reader | None) -> Any:
    """One message; without a reader it stays as it is. Raises InvalidRequest, also of a text with NUL."""
    if reader is None:
        return message
    try:
        request = reader(message)
    except DecodeError:
        # Also of a text that is not UTF-8, as one with half of a surrogate pair.
        raise errors.InvalidRequest([("request", "cannot be read as a message of its kind")]) from None
    # Without a byte of that value, no text has it: most requests are not looked through.
    if b"\0" in message and (paths := list(with_nul(request))):
        raise errors.InvalidRequest([(path, "must not hold NUL") for path in paths[:MAX_VIOLATIONS]])
    return request


class Reading:
    """A stream of messages, each read when it is asked for."""

    def __init__(self, messages: AsyncIterator[bytes], reader: Reader) -> None:
        self._messages = aiter(messages)
        self._reader = reader

    def __aiter__(self) -> Reading:
        return self

    async def __anext__(self) -> Any:
        return read(await anext(self._messages), self._reader)
