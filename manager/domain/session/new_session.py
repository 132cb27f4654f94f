"""A session and its kernels before they are inserted."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.manager.domain.session.spec_views import basic


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to be inserted; `spec` is the request as it is stored.

    One that is made here has what `SessionSpec.to_json` made, and decisions read the typed request beside it,
    `Draft.spec`. The journal's entry of a session has this record, too: read back, its request is as any version of the
    manager has written it, perhaps with members that this one cannot read. So it stays a document, which readers open
    by `StoredSpec`, a member at a time.
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
    spec: Mapping[str, Any]
    endpoint: str
    # 0 until it is inserted.
    number: int = 0

    def renamed(self, session_id: uuid.UUID, name: str) -> NewSession:
        """Returns a session of the same request but for the name."""
        return self._with(session_id, name, {**self.spec, "name": name})

    def numbered(self, number: int) -> NewSession:
        """Returns the session with its number."""
        return self._with(self.id, self.name, self.spec, number)

    def basic(self, number: int) -> NewSession:
        """Returns the session with its number, and without variables and scripts in its request."""
        return self._with(self.id, self.name, basic(self.spec), number)

    def _with(self, session_id: uuid.UUID, name: str, spec: Mapping[str, Any], number: int = 0) -> NewSession:
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
            spec,
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
