"""Runs a module as a program, and notes when functions of it begin and end: `python _traced.py DIRECTORY MODULE …`.

Each process writes a file of its own into the directory: lines of nanoseconds on the monotonic clock, and what happens.
Daemons are measured so without any change of theirs.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import runpy
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

POINTS = {
    "retinue.manager.api.sessions.servicer": ["SessionServicer.CreateSession"],
    "retinue.manager.session.submit": ["submit"],
    "retinue.manager.scheduler.group_loop": ["GroupLoop.plan", "GroupLoop.commit_outcome"],
    "retinue.manager.dispatch.desired_state": ["read_desired"],
    "retinue.manager.dispatch.reports": ["Reports.reported"],
    "retinue.agent.process.runtime": ["ProcessRuntime.prepare", "ProcessRuntime._start", "ProcessRuntime.start"],
}
"""Functions by the module that defines them; they are asynchronous."""


def _noting(name: str, function: Callable[..., Any], note: Callable[[str], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def noted(*args: Any, **kwargs: Any) -> Any:
        note(f"{name} begins")
        try:
            return await function(*args, **kwargs)
        finally:
            note(f"{name} ends")

    return noted


class _Loader(importlib.abc.Loader):
    """Loads a module as usual, and puts other functions in the place of its own before anyone else has them."""

    def __init__(self, loader: Any, note: Callable[[str], None]) -> None:
        self._loader = loader
        self._note = note

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for path in POINTS[module.__name__]:
            *owners, name = path.split(".")
            owner: Any = module
            for part in owners:
                owner = getattr(owner, part)
            function = getattr(owner, name)
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{path} of {module.__name__} is not asynchronous")
            setattr(owner, name, _noting(path, function, self._note))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in POINTS:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                spec.loader = _Loader(spec.loader, self._note)
                return spec
        return None


def trace(directory: Path) -> None:
    """Traces this process from now on."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(directory / f"{os.getpid()}.trace", flags, 0o600)

    def note(what: str) -> None:
        os.write(descriptor, f"{time.monotonic_ns()} {what}\n".encode())

    sys.meta_path.insert(0, _Finder(note))


if __name__ == "__main__":
    given, module = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    # As with `-P`: neither this directory nor the current one is searched for modules.
    del sys.path[0]
    trace(Path(given))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
