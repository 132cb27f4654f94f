"""Texts in requests, all of them at once: none holds NUL, which PostgreSQL and the kernel's interfaces do not take. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUL = "\0"


def with_nul(message: Message) -> Iterator[str]:
    """Paths of the fields of a message, at any depth, whose text holds NUL; of a map, of the value by its key, or of the map itself."""
    for field, value in message.ListFields():
        for path, item in _items(field, value):
            if isinstance(item, Message):
                yield from (f"{path}.{inner}" for inner in with_nul(item))
            elif isinstance(item, str) and _NUL in item:
                yield path


def _items(field: FieldDescriptor, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the values that a field holds, with the path of each."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for key in value:
            if isinstance(key, str) and _NUL in key:
                yield name, key
            else:
                yield f"{name}[{key!r}]", value[key]
    elif field.is_repeated:
        yield from ((f"{name}[{number}]", item) for number, item in enumerate(value))
    else:
        yield name, value
