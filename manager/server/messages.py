"""Requests as they arrive. They are read inside of a call, once it is known who makes it: strangers cannot have the
manager read anything, and what cannot be read is reported like any other error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf.message import DecodeError, Message

from retinue.manager.domain import errors
from retinue.rpc.fields import is_map, leaves

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor

MAX_VIOLATIONS = 100
Reader: TypeAlias = Callable[[bytes], Any]
# Neither PostgreSQL nor the kernel's interfaces take it in a text.
_NUL = "\0"


def with_nul(message: Message) -> Iterator[str]:
    """Paths of the fields of a message, at any depth, whose text holds NUL;
    of a map, of the value by its key, or of the map itself.
    """
    for fields, value in leaves(message):
        if isinstance(value, str):
            if _NUL in value:
                yield _name(fields)
        elif fields[-1].is_repeated:
            yield from (f"{_name(fields)}{index}" for index in _in_many(fields[-1], value))


def _in_many(field: FieldDescriptor, value: Any) -> Iterator[str]:
    """Yields the indices in a list or a map; that of a key is empty."""
    for key, item in value.items() if is_map(field) else enumerate(value):
        if isinstance(item, Message):
            yield from (f"[{key!r}].{inner}" for inner in with_nul(item))
        elif isinstance(item, str) and _NUL in item:
            yield f"[{key!r}]"
        if isinstance(key, str) and _NUL in key:
            yield ""


def _name(fields: tuple[FieldDescriptor, ...]) -> str:
    return ".".join(field.name for field in fields)


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
