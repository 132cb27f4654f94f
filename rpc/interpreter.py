"""The command that runs a module of this installation in a process of its own, away from files of users."""

from __future__ import annotations

import os
import site
import sys


def module_command(module: str, *options: str) -> list[str]:
    """Returns the command that runs a module by the interpreter of this process, with `options` of the interpreter.

    The new process searches neither the current directory nor `PYTHONPATH` and the user's own packages for modules. In
    each of them a `queue.py` would take the place of Python's own, and a daemon would execute it as root. Only an
    installation that is found by way of the last two is searched there again.
    """
    return [sys.executable, "-I" if _is_found_alone() else "-P", *options, "-m", module]


def _is_found_alone() -> bool:
    """Returns whether an interpreter finds this installation without variables and the user's own packages."""
    from importlib import metadata  # noqa: PLC0415  # a watchdog has no use for it, and it takes longer than the rest

    try:
        installed = metadata.distribution("retinue").locate_file("")
    except metadata.PackageNotFoundError:
        return False
    return os.path.realpath(str(installed)) in map(os.path.realpath, site.getsitepackages())
