"""Where the output of a kernel's command comes from."""

from __future__ import annotations

from enum import IntEnum


class Stream(IntEnum):
    """Where bytes came from; the numbers of `LogStream` in the contract."""

    UNSPECIFIED = 0
    STDOUT = 1
    STDERR = 2

    @classmethod
    def of(cls, number: int) -> Stream:
        """Returns the stream with that number; UNSPECIFIED for one that this version does not know."""
        return cls(number) if number in _NUMBERS else cls.UNSPECIFIED


_NUMBERS = frozenset(map(int, Stream))
