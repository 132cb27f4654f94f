"""Resolves the image of a session's kernels: a reference stands for one image from the first agent's report on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.manager.reasons import AttemptReason, SessionReason

# No other try and no other agent changes these.
PERMANENT_REASONS = frozenset(
    {
        AttemptReason.IMAGE_NOT_FOUND,
        AttemptReason.IMAGE_DENIED,
        AttemptReason.IMAGE_INVALID,
        AttemptReason.IMAGE_NEEDS_MORE,
    }
)
MOVED = SessionReason.IMAGE_MOVED


@dataclass(frozen=True, slots=True)
class SeenImage:
    """The image that an agent found: digest in its registry (empty if it came from none), the engine's id, and ports it says it serves."""

    digest: str = ""
    id: str = ""
    service_ports: tuple[Mapping[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.digest or self.id)

    def is_same(self, other: SeenImage) -> bool:
        """Agents of different architectures agree on the digest only, agents with and without a registry on the id only."""
        return (self.digest != "" and self.digest == other.digest) or (self.id != "" and self.id == other.id)

    @property
    def shown(self) -> str:
        """Returns the digest, or else the engine's id."""
        return self.digest or self.id


def reference(spec: Mapping[str, Any], role: str) -> str:
    """Returns the image that a stored request asks for, for kernels of a role; empty when that cannot be read."""
    for stored in (_member(_member(spec, "roles"), role), _member(spec, "kernel")):
        if image := _member(stored, "image"):
            return str(image)
    return ""


def _member(stored: object, key: str) -> object:
    return stored.get(key) if isinstance(stored, Mapping) else None
