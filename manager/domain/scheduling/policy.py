"""The scheduling policy of a resource group, why one cannot be used, and tiers of reasons for waiting."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Tier(enum.Enum):
    """A tier of reasons for waiting, by how far they are from being cured by waiting."""

    CONFIGURATION = "CONFIGURATION"
    POLICY = "POLICY"
    CAPACITY = "CAPACITY"
    SYSTEM = "SYSTEM"


@dataclass(frozen=True, slots=True)
class Policy:
    """The scheduling policy of a resource group: names and options that `strategies.validate_policy` accepts."""

    session_strategy: str = "drf"
    agent_strategy: str = "concentrated"
    options: Mapping[str, str] = field(default_factory=dict)


class PolicyError(ValueError):
    """A policy that cannot be used; the text says what is wrong with it, `option` which option, if it is one."""

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option
