"""Columns of numbers that grow by appending rows, and matrices whose columns are slots. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_FIRST_ROWS = 64
_FIRST_SLOTS = 8


class Slots:
    """The slots that were ever met, each with its column."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._columns: dict[str, int] = {}

    def column(self, slot: str) -> int:
        """Returns the column of a slot, a new one when it was not met before."""
        column = self._columns.get(slot)
        if column is None:
            column = self._columns[slot] = len(self.names)
            self.names.append(slot)
        return column


def grown(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """Returns the same values with room for `rows` rows, zero beyond."""
    if rows <= len(values):
        return values
    wider = np.zeros((max(rows, 2 * len(values), _FIRST_ROWS), *values.shape[1:]), values.dtype)
    wider[: len(values)] = values
    return wider


def empty(dtype: DTypeLike) -> NDArray[Any]:
    """Returns a column without rows."""
    return np.zeros(0, dtype)


def empty_amounts() -> NDArray[np.int64]:
    """Returns a matrix of amounts without rows."""
    return np.zeros((0, _FIRST_SLOTS), np.int64)


def widened(amounts: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
    """Returns the same amounts with room for `slots` columns, zero beyond."""
    if slots <= amounts.shape[1]:
        return amounts
    wider = np.zeros((len(amounts), max(slots, 2 * amounts.shape[1])), np.int64)
    wider[:, : amounts.shape[1]] = amounts
    return wider
