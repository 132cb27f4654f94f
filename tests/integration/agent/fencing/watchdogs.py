"""What watchdogs of tests guard, and which of them there are."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.fencing import watchdog
from retinue.agent.host.processes import Process, identify

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
LIMIT = 10_000.0
"""Seconds without a manager that attempts may continue for: no test takes so long."""
LATE = 2 * LIMIT


@contextmanager
def sleeper() -> Iterator[Process]:
    with subprocess.Popen(["/bin/sleep", "1000"]) as child:
        try:
            process = identify(child.pid)
            assert process is not None
            yield process
        finally:
            child.kill()


def watchdogs(state_dir: Path) -> list[int]:
    """Processes that watch over a directory."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                arguments = (place / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(state_dir).encode() in arguments and b"retinue.agent.fencing.watchdog" in arguments:
                found.append(int(place.name))
    return found


def write(state_dir: Path, silence: float, **processes: Process) -> None:
    """Writes down what is to be guarded, and that nothing was heard of a manager for so many seconds."""
    contact = time.clock_gettime(time.CLOCK_BOOTTIME) - silence
    known = watchdog.Guarded(BOOT_ID, contact, dict.fromkeys(processes, LIMIT), processes)
    fresh = state_dir / "new"
    fresh.write_bytes(known.encode())
    fresh.replace(state_dir / watchdog.FILE)
