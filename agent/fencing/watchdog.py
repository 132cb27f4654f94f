"""Ends guarded attempts when their agent cannot: a process of its own, which continues while the agent is stopped,
hangs or is gone.

The agent ends such attempts by itself once it was without a manager for too long (`agent/fencing/lease.py`), and what
it goes by is in a file. The watchdog reads the same file, and acts a little later on what is still there: it kills the
first process of the attempt, with which all others end, native process or container.
It runs before the first guarded attempt is released, and exits when none is left.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.host.processes import Process, alive, send_signal
from retinue.agent.state import checked
from retinue.rpc.files import try_lock
from retinue.rpc.interpreter import module_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retinue.agent.state.damaged import DamagedFiles

_log = logging.getLogger(__name__)

FILE, MARKS, LOCK = "fence.json", "fenced", "fence.lock"
"""Names in the agent's state directory: what is guarded, what the watchdog has ended,
and what a watchdog holds while it is there.
"""
SLACK = 1.1
"""The delay after which it acts, compared with the agent: the agent ends its attempts in better order."""
LONGEST_LOOK, LOOKS = 1.0, 20
"""Most seconds between two looks at the file, and how many there are at least in the time that an attempt has."""
START_SECONDS = 10.0


class WatchdogError(Exception):
    """There is no watchdog, and none could be started; may be tried again."""


@dataclass(frozen=True, slots=True)
class FenceTarget:
    """The handle by which a watchdog ends an attempt, without the agent: today always a process of the node."""

    process: Process


@dataclass(frozen=True, slots=True)
class Guarded:
    """The guarded attempts of a node, since its last start: seconds that each may continue for without a manager.

    `contact` is the time of the last contact, in seconds since the node was started;
    `processes` are the first ones of released attempts.
    """

    boot_id: str
    contact: float
    limits: Mapping[str, float] = field(default_factory=dict)
    processes: Mapping[str, Process] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Returns the content of the file."""
        processes = {key: [process.pid, process.start] for key, process in self.processes.items()}
        content = {
            "boot_id": self.boot_id,
            "contact": self.contact,
            "limits": dict(self.limits),
            "processes": processes,
        }
        return checked.dump(content)

    def overdue(self, now: float) -> dict[str, Process]:
        """Returns the first processes of attempts that the agent would have ended, were it there."""
        silence = now - self.contact
        return {
            key: process
            for key, process in self.processes.items()
            if key in self.limits and silence >= SLACK * self.limits[key]
        }

    def pause(self) -> float:
        """Returns the seconds until the next check is due."""
        return min(LONGEST_LOOK, min(self.limits.values(), default=LONGEST_LOOK) / LOOKS)


def read(path: Path, boot_id: str, damaged: DamagedFiles | None = None) -> Guarded | None:
    """Reads the file; returns None when it holds nothing of this start of the node. Blocks.

    One that cannot be read is moved to `damaged`.
    """
    try:
        known = checked.load(path.read_bytes())
        found = Guarded(
            str(known["boot_id"]),
            float(known["contact"]),
            {str(key): float(value) for key, value in known["limits"].items()},
            {str(key): Process(int(pid), int(start)) for key, (pid, start) in known.get("processes", {}).items()},
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if damaged is None:
            _log.warning("%s cannot be read: %s", path, error)
        else:
            damaged.set_aside(path, f"{error}; how long attempts were without a manager counts from now")
        return None
    return found if found.boot_id == boot_id else None


def was_ended(state_dir: Path, attempt_id: str) -> bool:
    """Returns whether a watchdog has ended the attempt. Blocks."""
    return (state_dir / MARKS / attempt_id).exists()


def forget(state_dir: Path, attempt_id: str) -> None:
    """Takes the mark away. Blocks."""
    (state_dir / MARKS / attempt_id).unlink(missing_ok=True)


def ensure(state_dir: Path) -> None:
    """Returns once a watchdog watches what is in the file now. Blocks while one is started; raises WatchdogError."""
    # A watchdog that is about to exit reads the file once more after it has released the lock.
    if (lock := try_lock(state_dir / LOCK)) is None:
        return
    os.close(lock)
    command = [*module_command("retinue.agent.fencing.watchdog"), str(state_dir)]
    try:
        # It leaves the agent's session, and continues in a child of its own: this waits only until it watches.
        subprocess.run(  # noqa: S603  # ours
            command, stdin=subprocess.DEVNULL, check=True, timeout=START_SECONDS, start_new_session=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise WatchdogError(f"no watchdog could be started: {error}") from error


def watch(state_dir: Path, boot_id: str, began: Callable[[], object] = lambda: None) -> None:
    """Watches until nothing is left to be guarded, and reports when it began;
    returns at once when another one watches.
    """
    while (lock := try_lock(state_dir / LOCK)) is not None:
        try:
            began()
            while (guarded := _living(state_dir, boot_id)) is not None:
                for attempt_id, process in guarded.overdue(time.clock_gettime(time.CLOCK_BOOTTIME)).items():
                    _end(state_dir, attempt_id, process)
                time.sleep(guarded.pause())
        finally:
            os.close(lock)
        # An attempt that was released in this moment relies on the process that held the lock.
        if _living(state_dir, boot_id) is None:
            return


def _living(state_dir: Path, boot_id: str) -> Guarded | None:
    """Returns the guarded attempts; None when none of them runs."""
    guarded = read(state_dir / FILE, boot_id)
    return guarded if guarded is not None and any(map(alive, guarded.processes.values())) else None


def _end(state_dir: Path, attempt_id: str, process: Process) -> None:
    if not alive(process):
        return
    # Before the end, so that no reader takes it for the command's own.
    (state_dir / MARKS).mkdir(mode=0o700, exist_ok=True)
    (state_dir / MARKS / attempt_id).touch(mode=0o600)
    send_signal(process, signal.SIGKILL)
    _log.warning("attempt %s was without a manager for too long, and its agent did not end it: killed", attempt_id)


def main(state_dir: Path) -> None:
    """Has a child watch, and returns once that has begun, or another does."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        watch(state_dir, boot_id, functools.partial(os.write, writing, b"."))
    else:
        os.close(writing)
        os.read(reading, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
