"""Paths into messages, as users of kubectl write them: `-o custom-columns=NAME:.spec.name` and
`--sort-by .create_time`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.timestamp_pb2 import Timestamp

from retinue.client.command.shell.printable import safe
from retinue.client.errors import UsageError
from retinue.rpc.fields import by_name, fields_of, is_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

PREFIX = "custom-columns="
# A field or key of a map; a key with dots in quotes; an item of a list, or all.
_STEP = re.compile(r"""\.([A-Za-z0-9_-]+)|\[['"]([^'"\]]+)['"]\]|\[(\d{1,9}|\*)\]""")


@dataclass(frozen=True, slots=True)
class Path:
    """A path that exists in a type of message: `.spec.labels.team`, `.kernels[*].agent`."""

    steps: Sequence[tuple[FieldDescriptor | None, str]]

    def values(self, message: Message) -> list[tuple[FieldDescriptor, Any]]:
        """Returns what stands there, each with its field: none where it is not set, several after `[*]`."""
        found: list[tuple[FieldDescriptor | None, Any]] = [(None, message)]
        for field, name in self.steps:
            found = [after for before in found for after in _follow(before, field, name)]
        return [(field, value) for field, value in found if field is not None]

    def text(self, message: Message) -> str:
        """Returns the values as one text, safe; `-` where there is none."""
        return ",".join(safe(_text(field, value)) for field, value in self.values(message)) or "-"

    def key(self, message: Message) -> tuple[int, float, str]:
        """Returns what messages are sorted by: what is not set comes last; numbers and times by their size."""
        values = self.values(message)
        if not values:
            return 2, 0.0, ""
        field, value = values[0]
        if isinstance(value, Timestamp):
            return 0, value.ToNanoseconds() / 1e9, ""
        if isinstance(value, (bool, int, float)) and field.enum_type is None:
            return 0, float(value), ""
        return 1, 0.0, _text(field, value)


def parse_path(text: str, descriptor: Descriptor) -> Path:
    """Returns a path into messages of a type; the first dot may be left out.
    Raises UsageError for one that leads nowhere.
    """
    rest = text if text[:1] in (".", "[") else f".{text}"
    kind: Descriptor | None = descriptor
    field: FieldDescriptor | None = None
    steps: list[tuple[FieldDescriptor | None, str]] = []
    position = 0
    while position < len(rest):
        match = _STEP.match(rest, position)
        if match is None:
            raise UsageError(f"{text!r} is not a path: write .spec.name, .spec.labels['a.b'] or .kernels[0].agent")
        position = match.end()
        name, key, index = match.groups()
        if index is not None:
            if field is None or not field.is_repeated or is_map(field):
                raise UsageError(f"{text!r}: there is no list before [{index}]")
            steps.append((None, index))
        elif field is not None and is_map(field):
            steps.append((None, key or name))
            field = _item(field)
        else:
            wanted = key or name
            known = {} if kind is None else by_name(kind)
            if wanted not in known:
                near = difflib.get_close_matches(wanted, known, n=1)
                hint = (
                    f"; did you mean {near[0]}?" if near else f"; there is {', '.join(sorted(known))}" if known else ""
                )
                raise UsageError(f"{text!r}: there is no field {wanted!r}{hint}")
            field = known[wanted]
            kind = fields_of(field)
            steps.append((field, ""))
    if not steps:
        raise UsageError("a path is missing: write .spec.name")
    return Path(steps)


def parse_columns(text: str, descriptor: Descriptor) -> list[tuple[str, Path]]:
    """Returns the titles and paths of `NAME:PATH,…`. Raises UsageError."""
    columns = []
    for part in filter(None, text.split(",")):
        title, colon, path = part.partition(":")
        if not colon or not title:
            raise UsageError(f"{part!r} is not NAME:PATH, as NAME:.spec.name")
        columns.append((safe(title), parse_path(path, descriptor)))
    if not columns:
        raise UsageError("custom-columns= needs NAME:PATH, as NAME:.spec.name")
    return columns


def _follow(
    before: tuple[FieldDescriptor | None, Any], field: FieldDescriptor | None, name: str
) -> list[tuple[FieldDescriptor | None, Any]]:
    came_by, value = before
    if field is None:
        assert came_by is not None  # noqa: S101  # no path begins with an index
        if is_map(came_by):
            inner = _item(came_by)
            return [(inner, value[name])] if name in value else []
        items = value if name == "*" else value[int(name) : int(name) + 1]
        return [(came_by, item) for item in items]
    # After a list without an index come the values of all its items.
    messages = value if came_by is not None and came_by.is_repeated and not hasattr(value, "DESCRIPTOR") else [value]
    found: list[tuple[FieldDescriptor | None, Any]] = []
    for message in messages:
        if field.has_presence and not message.HasField(field.name):
            continue
        inner_value = getattr(message, field.name)
        if field.has_presence or inner_value or not (field.is_repeated or field.cpp_type == field.CPPTYPE_STRING):
            found.append((field, inner_value))
    return found


def _item(field: FieldDescriptor) -> FieldDescriptor:
    """Returns the field of the values of a map."""
    assert field.message_type is not None  # noqa: S101  # maps have entries
    return field.message_type.fields_by_name["value"]


def _text(field: FieldDescriptor, value: Any) -> str:
    if hasattr(value, "ToJsonString"):
        return str(value.ToJsonString())
    if is_map(field) and hasattr(value, "items"):
        return " ".join(f"{key}={value[key]}" for key in sorted(value))
    if field.is_repeated and not isinstance(value, (str, bytes, int, float, bool)) and not hasattr(value, "DESCRIPTOR"):
        return ",".join(_text(field, item) for item in value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(str(value).split())
