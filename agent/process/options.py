"""The options of process kernels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.process.core.visible_paths import VisiblePaths
from retinue.agent.runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessOptions(RuntimeOptions):
    """The options of process kernels: those of all kernels, and paths of the node that they do not see, or see beside
    the usual ones.
    """

    hidden: tuple[Path, ...] = ()
    shown: tuple[Path, ...] = ()

    @property
    def visible(self) -> VisiblePaths:
        """Returns the paths of the node that kernels see."""
        never = (self.state_dir, self.scratch_dir, *self.hidden)
        return VisiblePaths.of(map(os.path.abspath, self.shown), map(os.path.abspath, never))
