"""A session and its kernels before they are inserted."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to be inserted, without its spec. Sessions that differ in nothing but their names share a spec,
    with any of the names: this one counts.
    """

    id: uuid.UUID
    name: str
    owner: str
    project: str
    resource_group: str
    type: str
    cluster_mode: str
    cluster_size: int
    priority: int
    endpoint: str
    # 0 until it is inserted.
    number: int = 0

    def renamed(self, session_id: uuid.UUID, name: str) -> NewSession:
        """Returns a session that differs in nothing but its id and name."""
        return self._with(session_id, name)

    def numbered(self, number: int) -> NewSession:
        """Returns the session with its number."""
        return self._with(self.id, self.name, number)

    def _with(self, session_id: uuid.UUID, name: str, number: int = 0) -> NewSession:
        # By hand: for very many, `replace` takes most of the time.
        return NewSession(
            session_id,
            name,
            self.owner,
            self.project,
            self.resource_group,
            self.type,
            self.cluster_mode,
            self.cluster_size,
            self.priority,
            self.endpoint,
            number,
        )


@dataclass(frozen=True, slots=True)
class NewKernel:
    """A kernel to be inserted; amounts are in smallest units."""

    id: uuid.UUID
    session_id: uuid.UUID
    role: str
    role_index: int
    local_rank: int
    hostname: str
    slots: Mapping[str, int]
