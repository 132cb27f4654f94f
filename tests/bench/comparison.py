"""Which figures got worse than those that are stored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.bench.goals import Figure, goal_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_ROW = re.compile(r"\| `(?P<name>[^`]+)` \| (?P<rest>.*) \|")
_CELLS = 8
"""After its name, a figure has so many; the page has other tables, too."""
_NEUTRAL = 0.1
"""The part of a figure by which it may be worse where nothing is known of its spread."""


def stored_in(table: str) -> dict[str, Figure]:
    """Returns the figures of docs/performance.md, or of their table alone, by name."""
    found = {}
    for line in table.splitlines():
        row = _ROW.fullmatch(line.strip())
        if row is None or len(cells := f" {row['rest']}".split("|")) != _CELLS:
            continue
        value, spread, unit, peer, ratio = (cell.strip() for cell in cells[:5])
        found[row["name"]] = Figure(row["name"], float(value), unit, _number(peer), _number(ratio), _spread(spread))
    return found


def got_worse(figures: Iterable[Figure], stored: Mapping[str, Figure]) -> Iterator[str]:
    """Yields a sentence for each figure that is worse than the stored one by more than the larger spread of the two."""
    for figure in figures:
        if (before := stored.get(figure.name)) is None:
            continue
        allowed = 1 + max(_relative(figure), _relative(before))
        if (times := _times_worse(figure, before)) > allowed:
            yield f"{figure.name} got worse: {_words(before)} before, {_words(figure)} now ({times:.2f} times)"


def far_worse(figures: Iterable[Figure], stored: Mapping[str, Figure], factor: float) -> Iterator[str]:
    """Yields a sentence for each figure that is more than `factor` times worse than the stored one."""
    for figure in figures:
        if (before := stored.get(figure.name)) is not None and (times := _times_worse(figure, before)) > factor:
            yield f"{figure.name} is {times:.2f} times worse: {_words(before)} before, {_words(figure)} now"


def _times_worse(figure: Figure, before: Figure) -> float:
    """By what factor a figure is worse: 1 for the same, less for a better one. Ratios count where both have one, as the
    days of a shared machine differ.
    """
    now, then = figure.value, before.value
    if figure.ratio is not None and before.ratio is not None:
        # A ratio is always that of the figure to its peer's, whichever is better.
        now, then = figure.ratio, before.ratio
    if _more_is_better(figure):
        now, then = then, now
    if then <= 0:
        return 1.0 if now <= 0 else float("inf")
    return now / then


def _more_is_better(figure: Figure) -> bool:
    goal = goal_of(figure.name)
    if goal is not None and ("at least" in goal.words or "at most" in goal.words):
        return "at least" in goal.words
    return figure.unit.endswith("/s")


def _relative(figure: Figure) -> float:
    """By what part of the figure its measurements lie beside it, towards the worse side."""
    if figure.spread is None or figure.value <= 0:
        return _NEUTRAL
    smallest, largest = figure.spread
    if _more_is_better(figure):
        return figure.value / smallest - 1 if smallest > 0 else _NEUTRAL
    return largest / figure.value - 1


def _words(figure: Figure) -> str:
    if figure.ratio is not None:
        return f"{figure.ratio:.4g} of its peer"
    return f"{figure.value:.4g} {figure.unit}"


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def _spread(cell: str) -> tuple[float, float] | None:
    smallest, _, largest = cell.partition(" to ")
    return (float(smallest), float(largest)) if largest else None
