"""Exclusive use of a directory by one process: advisory locks (flock(2)), which end with the process that has them."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT = 2.0
"""Seconds to wait for a lock: what a killed process was about to execute may have it for a moment longer."""
_PAUSE = 0.02


class InUseError(Exception):
    """Another process uses the directory; the text says what to do."""


def lock(directory: Path, message: str, timeout: float = TIMEOUT) -> int:
    """Locks a directory; returns the descriptor whose closing unlocks it. Blocks for up to `timeout` seconds.

    Raises InUseError with `message` while another process has it, and OSError.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise InUseError(message) from error
                time.sleep(_PAUSE)
            else:
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
