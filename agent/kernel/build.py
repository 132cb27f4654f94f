"""Builds the first process of containers, once: static, so that it runs in any image. `python -m agent.kernel.build`."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path("/var/cache/retinue")
SOURCE = Path(__file__).with_name("init.c")
COMPILERS = ("musl-gcc", "gcc", "cc")
"""In order of preference: with musl it is 30 KB, with glibc 800 KB."""
FLAGS = ("-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror")
BUILD_TIMEOUT = 60.0


class BuildError(Exception):
    """It is not built, and cannot be; the text says why."""


def built_path(cache: Path) -> Path:
    """Where it is once it is built; differs with its source and the machine type."""
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    return cache / f"init-{platform.machine()}-{digest}"


def build(cache: Path = CACHE) -> Path:
    """The path of the program; it is built if it is not there yet. Blocks. Raises BuildError."""
    path = built_path(cache)
    if path.exists():
        return path
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise BuildError("the first process of containers is not built, and there is no C compiler")
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as directory:
            fresh = Path(directory) / "init"
            command = [compiler, *FLAGS, "-o", str(fresh), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False)  # noqa: S603
            if done.returncode != 0:
                raise BuildError(f"the first process of containers does not build: {done.stderr.strip()}")
            fresh.chmod(0o755)
            descriptor = os.open(fresh, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Its name must never last without its content: it would be taken for built.
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            fresh.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the first process of containers does not build: {error}") from error
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
