"""What processes hold: memory, descriptors, threads and tasks of their event loops."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.devtools.process import ChildProcess

_TASKS = re.compile(r"tasks of the event loop: (\d+)")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one process; `memory` is its resident set in KiB."""

    memory: int
    descriptors: int
    threads: int
    tasks: int

    def grown_beyond(self, before: Footprint, share: float, slack: Footprint) -> list[str]:
        """Names what is larger than before by more than a share of it and an absolute slack."""
        return [
            f"{name} {getattr(before, name)} -> {getattr(self, name)}"
            for name in ("memory", "descriptors", "threads", "tasks")
            if getattr(self, name) > getattr(before, name) * (1 + share) + getattr(slack, name)
        ]


async def footprint_of(child: ChildProcess) -> Footprint:
    """Measures a running process. Raises OSError, TimeoutError."""
    pid = child.pid
    if pid is None:
        raise ProcessLookupError(f"{child.name} does not run")
    begin = child.log.stat().st_size
    os.kill(pid, signal.SIGUSR1)
    async with asyncio.timeout(NEVER):
        while not (found := _TASKS.findall(_text_from(child.log, begin))):
            await asyncio.sleep(0.05)
    status = Path(f"/proc/{pid}/status").read_text()
    return Footprint(
        memory=int(re.findall(r"VmRSS:\s+(\d+)", status)[0]),
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(re.findall(r"Threads:\s+(\d+)", status)[0]),
        tasks=int(found[-1]),
    )


def database_connections(directory: Path) -> int:
    """Counts the clients of the PostgreSQL server that runs on a data directory over its Unix socket.
    Raises OSError.
    """
    server = int((directory / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return sum("[local]" in _title_of(int(child)) for child in children)


def _title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (ProcessLookupError, FileNotFoundError):
        return ""


def _text_from(file: Path, begin: int) -> str:
    with file.open("rb") as log:
        log.seek(begin)
        return log.read().decode(errors="replace")
