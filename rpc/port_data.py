"""The data steps of OpenPort on the wire, which the API and agents write alike:
read and written here with one copy at most.

The library for messages copies data twice or more, each time into new memory;
of large data that costs more than to carry it.
"""

from __future__ import annotations

from typing import TypeAlias

FIELD = 2
"""Number of the field `data` in requests and responses of OpenPort, of managers and of agents."""
_BEGINNING = bytes([FIELD << 3 | 2])
_LONGEST_PREFIX = 6
_LAST = 0x80

Bytes: TypeAlias = bytes | bytearray | memoryview


def data_message(data: Bytes) -> bytes:
    """Returns the serialised step that holds the data."""
    prefix, size = bytearray(_BEGINNING), len(data)
    while size >= _LAST:
        prefix.append(size & 0x7F | _LAST)
        size >>= 7
    prefix.append(size)
    return b"".join((prefix, data))


def data_of(message: bytes) -> memoryview | None:
    """Returns the data that a serialised step holds; None when it holds anything else, or more than that."""
    if message[:1] != _BEGINNING:
        return None
    size = shift = 0
    for position in range(1, min(len(message), _LONGEST_PREFIX)):
        size |= (message[position] & 0x7F) << shift
        shift += 7
        if message[position] < _LAST:
            return memoryview(message)[position + 1 :] if len(message) == position + 1 + size else None
    return None
