"""What a caller may read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Text, or_, true

from retinue.manager.store.postgres.constructs import one_of, parameter


@dataclass(frozen=True, slots=True)
class Visibility:
    """The sessions that a caller may read: all, or the own ones and those of the projects administered."""

    everything: bool
    owner: str
    administered: tuple[str, ...] = ()

    @property
    def sees_others(self) -> bool:
        """Returns whether the caller may read sessions of other owners."""
        return self.everything or bool(self.administered)

    def condition(self, table: FromClause) -> ColumnElement[bool]:
        """Returns the condition on a table of what has an owner and a project, with the parameters of `parameters`."""
        if self.everything:
            return true()
        is_own = table.c.owner == parameter("visible_owner", Text())
        return or_(is_own, table.c.project == one_of("visible_projects"))

    def parameters(self) -> dict[str, Any]:
        """Returns the values that `condition` needs."""
        return {} if self.everything else {"visible_owner": self.owner, "visible_projects": list(self.administered)}

    def can_read(self, owner: str, project: str) -> bool:
        """Returns whether the caller may read a session of `owner` in `project`."""
        return self.everything or owner == self.owner or project in self.administered
