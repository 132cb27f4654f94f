"""The newest leadership that was ever seen: the guard against a manager that was replaced.

Terms count within an incarnation of the manager's database. A restored database is another incarnation, and its terms
start again from those of the backup; the incarnations before it are refused from then on,
so that a manager on the lost database is not obeyed again.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_FORMER = 64
"""Former incarnations that are remembered."""


class StaleTermError(Exception):
    """The term is lower than one seen before in its incarnation; `highest` is that."""

    def __init__(self, highest: int) -> None:
        """Keeps the highest term."""
        super().__init__(f"term {highest} was seen before")
        self.highest = highest


class StaleIncarnationError(Exception):
    """The incarnation was followed by another one; `current` is the newest."""

    def __init__(self, current: str) -> None:
        """Keeps the newest incarnation."""
        super().__init__(f"incarnation {current} was seen after it")
        self.current = current


@dataclass(frozen=True, slots=True)
class TermHistory:
    """The newest incarnation, its highest term, and the incarnations before it, oldest first. Empty: none was seen."""

    incarnation: str = ""
    term: int = 0
    former: tuple[str, ...] = ()

    def after(self, incarnation: str, term: int) -> TermHistory:
        """Returns the state after this was seen. Raises StaleTermError and StaleIncarnationError."""
        if incarnation == self.incarnation:
            if term < self.term:
                raise StaleTermError(self.term)
            return TermHistory(incarnation, term, self.former)
        if incarnation in self.former:
            raise StaleIncarnationError(self.incarnation)
        former = (*self.former, self.incarnation) if self.incarnation else self.former
        return TermHistory(incarnation, term, former[-MAX_FORMER:])
