"""The options of virtual machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retinue.agent.process.options import ProcessOptions
from retinue.agent.resources.discovery import MIN_STARTS


@dataclass(frozen=True, slots=True)
class VmOptions(ProcessOptions):
    """The options of virtual machines: those of process kernels, and where to put sockets, whose paths must be short.

    A machine has `boot_timeout` seconds to boot in, and so many `starts` are under way at a time.
    """

    run_dir: Path = Path("/run/retinue/vm")
    boot_timeout: float = 180.0
    starts: int = MIN_STARTS
