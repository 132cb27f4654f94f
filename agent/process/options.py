"""The options of process kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessOptions(RuntimeOptions):
    """The options of process kernels: those of all kernels, and paths of the node that they do not see."""

    hidden: tuple[Path, ...] = ()
