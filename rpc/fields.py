"""Walks messages, and paths of their fields, along the descriptors of the contract. Pure."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

Path: TypeAlias = tuple[str, ...]
# Messages that are single values to their writers.
_VALUES = frozenset({"google.protobuf.Duration", "google.protobuf.Timestamp"})


def leaves(
    message: Message, above: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[tuple[FieldDescriptor, ...], Any]]:
    """Yields the fields that are set in a message and in those within it,
    each with the fields on the way to it and itself as the last.

    Lists and maps are one value each.
    """
    for field, value in message.ListFields():
        if field.message_type is None or field.is_repeated or fields_of(field) is None:
            yield (*above, field), value
        else:
            yield from leaves(value, (*above, field))


@functools.cache
def is_map(field: FieldDescriptor) -> bool:
    """Returns whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


@functools.cache
def fields_of(field: FieldDescriptor) -> Descriptor | None:
    """Returns the type of a field, or of its items, that has fields of its own;
    None for values, also durations and times, and for maps.
    """
    kind = field.message_type
    return None if kind is None or kind.full_name in _VALUES or is_map(field) else kind


@functools.cache
def by_name(descriptor: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Returns the fields of a message by their names, both those of the contract and those of JSON."""
    return {name: field for field in descriptor.fields for name in (field.name, field.json_name)}


def split_path(text: str, descriptor: Descriptor, *, keyed: str, implied: str = "") -> Path | None:
    """Returns the parts of the path of a field, named as in the contract; None when there is no such field.

    A part after a map is a key, with all its dots; one after the list `keyed` names an item of it. Keys may stand in
    backticks. The field `implied` may be left out before those within it.
    """
    path: list[str] = []
    kind: Descriptor | None = descriptor
    rest = text
    while rest and kind is not None:
        name, _, rest = rest.partition(".")
        known = by_name(kind)
        if name not in known and (inner := known.get(implied)) is not None and inner.message_type is not None:
            path.append(implied)
            known = by_name(inner.message_type)
        if (field := known.get(name)) is None:
            return None
        path.append(field.name)
        kind = fields_of(field)
        if is_map(field) or path == [keyed]:
            key, _, rest = (rest, "", "") if is_map(field) else rest.partition(".")
            path += [_unquoted(key)] if key else []
        elif field.is_repeated:
            kind = None
    return None if rest or not path or text.endswith(".") else tuple(path)


def _unquoted(key: str) -> str:
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == "`" else key
