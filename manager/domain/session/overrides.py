"""Merges the fields of a request over those of a template: fields by path, deeply merged. Pure.

A request is seen as its leaves: values by the paths of their fields. Entries of maps and roles are leaves of their own,
by their keys; lists are one leaf each. Which paths are leaves follows from the contract,
so no leaf's path is the beginning of another's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overrides:
    """The changes to the leaves of a request: first those at or below `removed` go, then those of `given` are set.

    `then` is associative, `NOTHING` is its identity, and doing the same twice is doing it once.
    """

    given: Mapping[Path, Any] = field(default_factory=dict)
    removed: frozenset[Path] = frozenset()

    def then(self, other: Overrides) -> Overrides:
        """This and after it `other`, as one; `other` wins."""
        kept = {path: value for path, value in self.given.items() if not within(path, other.removed)}
        return Overrides({**kept, **other.given}, _outermost(self.removed | other.removed))

    def only(self, paths: Collection[Path]) -> Overrides:
        """Returns the part at or below `paths`."""
        return Overrides(
            {path: value for path, value in self.given.items() if within(path, paths)},
            frozenset(path for path in self.removed if within(path, paths)),
        )


NOTHING = Overrides()


def within(path: Path, roots: Collection[Path]) -> bool:
    """Returns whether a path is one of `roots` or below one."""
    return any(path[:length] in roots for length in range(1, len(path) + 1))


def _outermost(paths: frozenset[Path]) -> frozenset[Path]:
    """Without those below others, which say nothing."""
    return frozenset(path for path in paths if not within(path[:-1], paths))
