"""Messages of any kind, made from their descriptors out of what parsers stumble over. Seeded: the same each time."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

STRINGS = (
    "",
    "\0",
    "a\0b",
    "not-a-uuid",
    "00000000-0000-0000-0000-000000000001",
    "00000000-0000-0000-0000-000000000001.1",
    "00000000-0000-0000-0000-000000000001.99999999999",
    "00000000-0000-0000-0000-000000000001.²",
    "{00000000-0000-0000-0000-000000000001}.1_0",
    "urn:uuid:00000000-0000-0000-0000-000000000001",
    "٣.٣",
    "cpu",
    "mem",
    "cuda.device",
    "x86_64",
    "0.0.0.0",  # noqa: S104  # to be refused
    "::",
    "127.0.0.1",
    "fe80::1%eth0",
    "255.255.255.255",
    "224.0.0.1",
    "192.0.2.1",
    "192.0.2.1:1",
    "[::1]:0",
    "999.1.1.1",
    "\x1b[31mred\x07",
    "\u202eright to left",
    "\ufeff\ufffe\uffff",
    "𐏿" * 40,
    "é" * 2000,
    "'; DROP TABLE agent; --",
    '"]}{"',
    "\\u0000",
    "%s%n{}",
    "sha256:" + "0" * 64,
    "sha256:" + "G" * 64,
    "EXITED",
    "a" * 100_000,
)
INTEGERS = (0, 1, 2, 3, 5, 7, 8, 100, 1000, 2**16, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1)
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 2**31 - 1),
}


class Fuzz:
    """Makes messages from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # a fixed seed

    def message(self, kind: type[M], *, depth: int = 0) -> M:
        """A message in which every field may be anything, or missing."""
        made = kind()
        self.fill(made, 0.6, depth)
        return made

    def fill(self, message: Message, share: float, depth: int = 0) -> None:
        """Sets about that share of the fields."""
        chosen = [self.random.choice(oneof.fields) for oneof in message.DESCRIPTOR.oneofs]
        for field in message.DESCRIPTOR.fields:
            if field.containing_oneof is not None and field not in chosen:
                continue
            if self.random.random() < share and depth < 6:
                self.set(message, field, depth)

    def set(self, message: Message, field: Any, depth: int = 0) -> None:
        """Sets a field to anything that its type can hold."""
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(self.random.choice((0, 1, 2, 70))):
                value[self.scalar(field.message_type.fields_by_name["key"])] = self.scalar(
                    field.message_type.fields_by_name["value"]
                )
        elif field.is_repeated:
            for _ in range(self.random.choice((0, 1, 1, 2, 3, 40))):
                if field.message_type is not None:
                    self.fill(value.add(), 0.6, depth + 1)
                else:
                    value.append(self.scalar(field))
        elif field.message_type is not None:
            value.SetInParent()
            self.fill(value, 0.6, depth + 1)
        else:
            setattr(message, field.name, self.scalar(field))

    def scalar(self, field: Any) -> Any:
        """A value of the field's type."""
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            text = self.random.choice(STRINGS)
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return self.random.random() < 0.5
        if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return self.random.choice((0.0, -1.0, 1e308, float("inf"), float("nan")))
        lowest, highest = _BITS[field.cpp_type]
        return min(max(self.random.choice((1, -1)) * self.random.choice(INTEGERS), lowest), highest)

    def corrupt(self, message: M, most: int = 3) -> M:
        """A copy of a sound message in which a few fields, anywhere in it, are anything."""
        made = type(message)()
        made.CopyFrom(message)
        for _ in range(self.random.randint(1, most)):
            where: Message = made
            for level in range(4):
                inner = [
                    item
                    for field, value in where.ListFields()
                    if field.message_type is not None and not field.message_type.GetOptions().map_entry
                    for item in (value if field.is_repeated else (value,))
                ]
                if not inner or (level and self.random.random() < 0.3):
                    break
                where = self.random.choice(inner)
            self.set(where, self.random.choice(list(where.DESCRIPTOR.fields)), depth=3)
        return made
