"""Decodes JSON documents out of columns. Other versions of the manager write them too, so reading one never raises,
and costs that one only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A document that this version cannot read: another version wrote it, or it is damaged.
    `error` says for people which and why.
    """

    error: str


class Decoder(Generic[T]):
    """Reads documents of one kind. `what` names one for people; `read` may raise any error of values."""

    def __init__(self, what: str, read: Callable[[object], T]) -> None:
        self._what = what
        self._read = read

    def decode(self, stored: object) -> T | Unreadable:
        """Returns a document as a value. Never raises."""
        try:
            return self._read(stored)
        # What a document of the wrong shape can make of reading it; RecursionError by its depth.
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            return Unreadable(f"{self._what} cannot be read: {_first_line(error)}")

    def decode_present(self, stored: object) -> T | None:
        """Returns a document as a value; None for an empty one and, after a warning in the log,
        for one that cannot be read. Never raises.
        """
        if stored is None or stored == {}:
            return None
        return _reported(self.decode(stored))

    def decode_each(self, stored: object) -> tuple[T, ...]:
        """Returns the documents of a list; those that cannot be read are left out, with a warning in the log.
        Never raises.
        """
        if not isinstance(stored, list):
            _log.warning("a list cannot be read in place of which there is %s: %s", type(stored).__name__, self._what)
            return ()
        found = (_reported(self.decode(item)) for item in stored)
        return tuple(item for item in found if item is not None)


def _reported(decoded: T | Unreadable) -> T | None:
    if isinstance(decoded, Unreadable):
        _log.warning("%s", decoded.error)
        return None
    return decoded


def _first_line(error: Exception) -> str:
    """Returns an error as one line: those of pydantic have many, and the values among them are not for logs."""
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}"
