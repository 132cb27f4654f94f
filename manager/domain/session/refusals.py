"""Requests for sessions that are refused, in a batch beside others that are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.domain.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

# So many names are told.
_NAMED = 16


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is refused; `name` is the one it asks for, empty without one."""

    name: str
    error: ApiError


def no_project(caller: str, projects: Sequence[str]) -> str:
    """Returns what a caller who is not in exactly one project, and names none, is told of the field."""
    if not projects:
        return f"is required, and you are in none: an administrator runs `retinue projects member PROJECT {caller}`"
    return f"is required, as you are in several: give one of {', '.join(sorted(projects)[:_NAMED])}"
