"""One child process of a local cluster: started, watched, stopped by its pid, its output in a file.

Nothing here belongs to an event loop, so that a cluster made in one may be used from another.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_POLL_SECONDS = 0.02
_TAIL_BYTES = 65_536
_TAIL_LINES = 12
_FATAL = "Fatal Python error"


class ChildProcess:
    """A command that may be started again after it ended."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """`log` is appended to by every run; `environment` is all that the command gets."""
        self.name = name
        self.log = log
        self._command = tuple(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        # The offset in the log at which the last run begins.
        self._begin = 0

    @property
    def pid(self) -> int | None:
        """Returns its process while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """Returns the exit status of the last run, negative for a signal; None before the first and while it runs."""
        return self._process.poll() if self._process is not None else None

    async def start(self) -> None:
        """Starts it, unless it runs. Raises OSError."""
        if self.pid is None:
            await in_thread(self._spawn)

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._begin = log.tell()
            # A session of its own: what is typed at our terminal is ours to pass on.
            self._process = subprocess.Popen(  # noqa: S603  # the command is ours
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    async def wait(self, seconds: float) -> bool:
        """Returns whether it has ended within so many seconds."""
        deadline = time.monotonic() + seconds
        while self.pid is not None:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def stop(self, seconds: float = 10.0) -> None:
        """Asks it to end, and kills it if it has not after so many seconds."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        if not await self.wait(seconds):
            await self.kill()

    async def kill(self) -> None:
        """Kills it and waits until it is gone."""
        self.signal(signal.SIGKILL)
        await self.wait(60.0)

    def exit_report(self) -> str:
        """Says how the last run ended and what it wrote last; empty before the first and while it runs."""
        if (status := self.exit_status) is None:
            return ""
        lines = "".join(f"\n  {line}" for line in self.last_lines())
        return f"{how_it_ended(status)}; the end of {self.log}:{lines or ' nothing was written'}"

    def last_lines(self) -> list[str]:
        """Returns the end of what the last run wrote, or, of a crash, the beginning of the interpreter's report."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self._begin, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        crash = next((number for number, line in enumerate(lines) if line.startswith(_FATAL)), None)
        return lines[-_TAIL_LINES:] if crash is None else lines[crash:][:_TAIL_LINES]


def how_it_ended(status: int) -> str:
    """Returns an exit status, negative for a signal, in words."""
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "a signal without a name"
    return f"was killed by {name} ({-status})"


def start_time(pid: int) -> int | None:
    """Returns the start time of a process, in clock ticks since boot: with the pid it names one process.
    None when it is gone.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] == "Z" else int(after_name[19])


def end(pid: int, started: int, polite: signal.Signals = signal.SIGTERM, seconds: float = 10.0) -> None:
    """Ends a process that is not our child, if it still is the one started then: asks, then kills. Blocks."""
    for number in (polite, signal.SIGKILL):
        deadline = time.monotonic() + seconds
        if start_time(pid) != started:
            return
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        while start_time(pid) == started and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
