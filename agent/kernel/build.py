"""Builds the small programs that run inside kernels, once: static, so that they run in any image."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

CACHE = Path("/var/cache/retinue")
INIT, ATTACH, PUMP, JAIL, GUEST, REACH, SRUN = "init", "attach", "pump", "jail", "guest", "reach", "srun"
ENCLOSE = "enclose"
PROGRAMS = (INIT, ATTACH, PUMP, JAIL, GUEST, REACH, SRUN, ENCLOSE)
"""The first process of containers, what runs a command in a kernel for a caller outside, what takes a kernel's output,
the first command of a jail, the first process of virtual machines, what reaches ports and programs in those, what
starts the tasks of a job in its kernels, and what the command of a native process gives up its rights by.
"""
EXECUTE_ONLY = (INIT, ATTACH, JAIL, ENCLOSE)
"""Programs whose files kernels can run and not read: Linux keeps others from tracing such
processes from their first moment on.

A process that traced one before it set its filter of system calls would run without the filter.
"""
SHIPPED = Path("/usr/lib/retinue")
"""The directory of the programs in images of the agent: those hold no compiler."""
COMPILERS = ("musl-gcc", "gcc", "cc")
"""In order of preference: with musl it is 30 KB, with glibc 800 KB."""
FLAGS = ("-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror")
BUILD_TIMEOUT = 60.0


class BuildError(Exception):
    """It is not built, and cannot be; the text says why."""


def source_of(program: str) -> Path:
    """Returns the C source of a program."""
    return Path(__file__).with_name(f"{program}.c")


def built_path(cache: Path, program: str = INIT) -> Path:
    """Returns the path of a built program; differs with its source and the machine type."""
    sources = (source_of(program), *sorted(Path(__file__).parent.glob("*.h")))
    content = b"".join(source.read_bytes() for source in sources) + " ".join((*FLAGS, f"{_mode(program):o}")).encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return cache / f"{program}-{platform.machine()}-{digest}"


def build(cache: Path = CACHE, program: str = INIT) -> Path:
    """Returns the path of a program; it is built if it is not there yet. Blocks. Raises BuildError."""
    path = built_path(cache, program)
    if path.exists():
        return path
    if (shipped := built_path(SHIPPED, program)).exists():
        return _copy(shipped, path, _mode(program))
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise BuildError(f"the program {program} for kernels is not built, and there is no C compiler")
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as directory:
            fresh = Path(directory) / program
            command = [compiler, *FLAGS, "-o", str(fresh), str(source_of(program))]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False)  # noqa: S603
            if done.returncode != 0:
                raise BuildError(f"the program {program} for kernels does not build: {done.stderr.strip()}")
            _settle(fresh, path, _mode(program))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the program {program} for kernels does not build: {error}") from error
    return path


def store(name: str, content: bytes, cache: Path = CACHE) -> Path:
    """Writes a file that kernels read, unless it is there, and returns its path, which differs with the content.
    Raises BuildError.
    """
    path = cache / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
    if path.exists():
        return path
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as directory:
            fresh = Path(directory) / name
            fresh.write_bytes(content)
            _settle(fresh, path, 0o644)
    except OSError as error:
        raise BuildError(f"{path} cannot be written: {error}") from error
    return path


def _mode(program: str) -> int:
    return 0o711 if program in EXECUTE_ONLY else 0o755


def _copy(shipped: Path, path: Path, mode: int) -> Path:
    """Copies the program for the engine, which mounts it into containers: the node, and not only this process,
    must find it.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as directory:
            _settle(Path(shutil.copyfile(shipped, Path(directory) / path.name)), path, mode)
    except OSError as error:
        raise BuildError(f"{shipped} cannot be copied: {error}") from error
    return path


def _settle(fresh: Path, path: Path, mode: int) -> None:
    """Gives it its name, which must never last without its content: it would be taken for built."""
    fresh.chmod(mode)
    descriptor = os.open(fresh, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    fresh.replace(path)
