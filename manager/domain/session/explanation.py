"""Why a session waits, as it is stored for people: amounts as texts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from retinue.manager.domain.scheduling.policy import Tier


@dataclass(frozen=True, slots=True)
class StoredShortfall:
    """One kernel's binding slot on the agent that comes closest; all kernels together for no hostname."""

    hostname: str
    agent: str
    slot: str
    requested: str
    free: str
    short: str


@dataclass(frozen=True, slots=True)
class StoredExplanation:
    """An explanation of a pending reason."""

    tier: Tier = Tier.SYSTEM
    shortfalls: tuple[StoredShortfall, ...] = ()


NO_EXPLANATION = StoredExplanation()
_EXPLANATION = TypeAdapter(StoredExplanation)


def parse_explanation(stored: object) -> StoredExplanation:
    """Returns an explanation out of its column; NO_EXPLANATION for none, and for one that cannot be read.

    Never raises.
    """
    try:
        return _EXPLANATION.validate_python(stored)
    except ValidationError:
        return NO_EXPLANATION
