"""Amounts of all slots in one Python integer, so that one subtraction compares them all.

Each slot has a lane of 64 bits, the slot compared first in the most significant one. Amounts stay below 2**62, so the
top bit of a lane, its guard, is free: `(free | guards) - request` leaves every guard set exactly when each amount
suffices, and no lane borrows from the next (the SIMD-within-a-register comparison of Lamport, "Multiple byte processing
with full-word instructions", CACM 1975). And because slots are in order of comparison, comparing two such integers
compares the amounts slot by slot. A fit costs a tenth of a microsecond, where a NumPy call on a row of eight costs one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from retinue.manager.scheduling.columns import Integers

LANE_BITS = 64
LANE_BYTES = LANE_BITS // 8
# Anything that large fits nowhere: amounts are at most 2**53.
LIMIT = 1 << 62


class Lanes:
    """The layout for `count` slots."""

    __slots__ = ("count", "guards", "ones")

    def __init__(self, count: int) -> None:
        """`count` slots; the first is the most significant."""
        self.count = count
        repeat = sum(1 << (LANE_BITS * lane) for lane in range(count))
        self.guards = repeat << (LANE_BITS - 1)
        # The largest amount in every lane: adding it carries into a lane's guard exactly when the lane is above 0.
        self.ones = self.guards - repeat

    def guards_of(self, chosen: Sequence[bool]) -> int:
        """Returns the guards of some lanes: by lane, whether it is one of them."""
        return sum(1 << LANE_BITS * (self.count - lane) - 1 for lane, yes in enumerate(chosen) if yes)

    def pack(self, amounts: Iterable[int]) -> int:
        """Returns one integer of the amounts, cut off at LIMIT."""
        packed = 0
        for amount in amounts:
            packed = packed << LANE_BITS | min(amount, LIMIT)
        return packed

    def pack_rows(self, rows: Integers) -> list[int]:
        """Returns one integer for each row of n x count amounts below LIMIT."""
        width = self.count * LANE_BYTES
        if not width:
            return [0] * len(rows)
        data = np.ascontiguousarray(rows, dtype=">i8").tobytes()
        return [int.from_bytes(data[start : start + width], "big") for start in range(0, width * len(rows), width)]

    def unpack_rows(self, packed: Sequence[int]) -> Integers:
        """Returns the n x count amounts of n integers."""
        width = self.count * LANE_BYTES
        data = b"".join([value.to_bytes(width, "big") for value in packed])
        return np.frombuffer(data, dtype=">i8").reshape(len(packed), self.count).astype(np.int64)

    def unpack(self, packed: int) -> list[int]:
        """Returns the amounts of one integer."""
        return [packed >> (LANE_BITS * lane) & (LIMIT * 2 - 1) for lane in reversed(range(self.count))]

    def fits(self, request: int, free: int) -> bool:
        """Returns whether no lane of `request` is above that of `free`."""
        return ((free | self.guards) - request) & self.guards == self.guards

    def zeros(self, packed: int) -> int:
        """Returns the guards of those lanes that are 0."""
        return self.guards & ~(packed + self.ones)
