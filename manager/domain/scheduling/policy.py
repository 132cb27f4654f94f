"""The scheduling policy of a resource group, why one cannot be used, and tiers of reasons for waiting."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from retinue.rpc.core.amounts import DISK

NOT_IN_SHARES = frozenset({DISK})
"""Slots that no dominant share counts, and fair share only where its weights name them. Most kernels have the default
of `disk`, which nobody asked for: where disks are small, it would be the largest share of everybody, and processors and
GPUs would be given out by the number of kernels. Quotas bound it.
"""


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
