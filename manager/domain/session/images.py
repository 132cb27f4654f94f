"""Resolves the image of a session's kernels: a reference stands for one image from the first agent's report on.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.session.service_ports import ServicePortSpec
from retinue.rpc.core.reasons import AttemptReason

# No other try and no other agent changes these.
PERMANENT_REASONS = frozenset(
    {
        AttemptReason.IMAGE_NOT_FOUND,
        AttemptReason.IMAGE_DENIED,
        AttemptReason.IMAGE_INVALID,
        AttemptReason.IMAGE_NEEDS_MORE,
        AttemptReason.IMAGE_NOT_PRESENT,
    }
)
MOVED = SessionReason.IMAGE_MOVED
_PORTS = TypeAdapter(tuple[ServicePortSpec, ...])


class PullPolicy(StrEnum):
    """When a node asks the registry of an image for it, as it is stored."""

    ALWAYS = "ALWAYS"
    MISSING = "MISSING"
    NEVER = "NEVER"


@dataclass(frozen=True, slots=True)
class SeenImage:
    """The image that an agent found: digest in its registry (empty if it came from none), the engine's id,
    and ports it says it serves.
    """

    digest: str = ""
    id: str = ""
    service_ports: tuple[ServicePortSpec, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.digest or self.id)

    def is_same(self, other: SeenImage) -> bool:
        """Agents of different architectures agree on the digest only,
        agents with and without a registry on the id only.
        """
        return (self.digest != "" and self.digest == other.digest) or (self.id != "" and self.id == other.id)

    @property
    def shown(self) -> str:
        """Returns the digest, or else the engine's id."""
        return self.digest or self.id


NO_IMAGE = SeenImage()


def parse_image(digest: str, identifier: str, service_ports: object) -> SeenImage | None:
    """Returns an image as stored; None when its ports cannot be read. Never raises."""
    try:
        return SeenImage(digest, identifier, _PORTS.validate_python(service_ports) if service_ports else ())
    except ValidationError:
        return None
