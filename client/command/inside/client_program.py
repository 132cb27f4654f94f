"""Continues as a program of OpenSSH's: what ends this one ends that, and nothing of either is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What Python ignores, and what it starts would ignore too.
_IGNORED = ("SIGPIPE", "SIGXFSZ")


def become(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a program, whose path comes first, in place of this one; where systems cannot do that, beside it,
    and returns its exit code.
    """
    if os.name == "posix":
        sys.stdout.flush()
        sys.stderr.flush()
        for name in _IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execve(command[0], list(command), environment)  # noqa: S606
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603
