"""Dependencies: which ends they wait for, and among the sessions of one request, for which positions stand, cycles and
who depends on whom in the end. Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from retinue.manager.domain.session.states import ENDED_SESSION_STATES, Result, SessionState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


class DependencyKind(StrEnum):
    """The end of another session that a session waits for; any other end cancels it."""

    SUCCESS = "SUCCESS"
    END = "END"
    FAILURE = "FAILURE"

    def is_met(self, state: SessionState | None, result: Result | None) -> bool:
        """Returns whether a session that is in this state has had such an end."""
        if state not in ENDED_SESSION_STATES:
            return False
        succeeded = state is SessionState.TERMINATED and result is Result.SUCCESS
        return self is DependencyKind.END or succeeded == (self is DependencyKind.SUCCESS)


def find_cycles(parents: Mapping[int, Collection[int]]) -> list[list[int]]:
    """Returns one cycle for each group of sessions that depend on each other,
    each session before the one it depends on.

    Linear in sessions and dependencies, and without recursion: Kahn's order takes away what is in no cycle and behind
    none, and what is left is walked from parent to parent until a session comes twice.
    """
    left = _knotted(parents)
    cycles: list[list[int]] = []
    seen: set[int] = set()
    for start in sorted(left):
        walk: dict[int, int] = {}
        here = start
        while here not in seen:
            seen.add(here)
            walk[here] = len(walk)
            here = min(parent for parent in parents[here] if parent in left)
        if here in walk:
            cycles.append([session for session, position in walk.items() if position >= walk[here]])
    return cycles


def _knotted(parents: Mapping[int, Collection[int]]) -> set[int]:
    """Sessions that are on a cycle, or depend on one."""
    waits = {session: len(set(of)) for session, of in parents.items()}
    children: dict[int, list[int]] = {}
    for session, of in parents.items():
        for parent in set(of):
            children.setdefault(parent, []).append(session)
    free = [parent for parent in children if parent not in waits] + [s for s, number in waits.items() if number == 0]
    while free:
        for child in children.get(free.pop(), ()):
            waits[child] -= 1
            if waits[child] == 0:
                free.append(child)
    return {session for session, number in waits.items() if number > 0}


def dependents(parents: Mapping[int, Collection[int]], roots: Iterable[int]) -> dict[int, int]:
    """Returns all sessions that depend on `roots`, directly or not,
    each with a session it depends on that is a root or one of them.
    """
    children: dict[int, list[int]] = {}
    for session, of in parents.items():
        for parent in of:
            children.setdefault(parent, []).append(session)
    start = set(roots)
    found: dict[int, int] = {}
    front = sorted(start)
    while front:
        following = []
        for parent in front:
            for child in children.get(parent, ()):
                if child not in found and child not in start:
                    found[child] = parent
                    following.append(child)
        front = following
    return found


def path_text(cycle: Sequence[str], limit: int = 8) -> str:
    """Returns a cycle for people: `a → b → a`; the middle of a long one is left out."""
    shown = list(cycle)
    if len(shown) > limit:
        shown = [*shown[: limit - 1], f"({len(cycle) - limit} more)", shown[-1]]
    return " → ".join([*shown, cycle[0]])
