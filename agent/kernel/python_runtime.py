"""Builds the Python that runs code in kernels whose image has none, once: interpreter,
libraries and `ipykernel` in one directory.

The interpreter is the one this runs under; with it go the dynamic linker and every library that it or an extension
needs, so that it runs in any image. `ipykernel` comes from the package index that pip is configured for.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from retinue.agent.kernel.build import CACHE, SHIPPED, BuildError, build
from retinue.agent.kernel.paths import PYTHON

OUTPUT = Path(__file__).with_name("code_output.py")
"""A module that goes with the libraries."""
LAUNCHER = "python"
"""Name of the program that starts the interpreter, and of its source."""
REQUIREMENTS = ("ipykernel>=6.29,<8",)
LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "__pycache__",
    "config-*",
)
STEP_TIMEOUT = 600.0
_LIBRARY = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x", re.MULTILINE)
MADE = "3"
"""Counts changes in how it is made."""


def runtime_path(cache: Path = CACHE) -> Path:
    """Returns the path of the built runtime; differs with the interpreter, its contents and the machine type."""
    facts = " ".join((MADE, sys.version, *REQUIREMENTS, OUTPUT.read_text()))
    return cache / f"python-{platform.machine()}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def find_runtime(cache: Path = CACHE) -> Path | None:
    """Returns the runtime's directory; None while it is not built."""
    return next((path for path in (runtime_path(cache), runtime_path(SHIPPED)) if path.is_dir()), None)


def build_runtime(cache: Path = CACHE) -> Path:
    """Returns the runtime's directory; it is built if it is not there yet. Blocks for a minute. Raises BuildError."""
    if (found := find_runtime(cache)) is not None:
        return found
    path = runtime_path(cache)
    launcher = build(cache, LAUNCHER)
    try:
        with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as scratch:
            fresh = Path(scratch) / "python"
            _fill(fresh, launcher)
            try:
                fresh.rename(path)
            except OSError:
                # Another process was faster.
                if not path.is_dir():
                    raise
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"the Python for kernels is not built: {_why(error)}") from error
    return path


def _fill(root: Path, launcher: Path) -> None:
    library = root / "lib"
    standard = Path(sysconfig.get_path("stdlib"))
    packages = library / standard.name / "site-packages"
    (root / "bin").mkdir(parents=True)
    # The directory in which Debian's own interpreter looks.
    packages.parent.mkdir(parents=True)
    (packages.parent / "dist-packages").symlink_to(packages.name)
    # Debian keeps the platform's own modules beside: what is linked to is copied.
    shutil.copytree(
        standard,
        library / standard.name,
        ignore=shutil.ignore_patterns(*LEFT_OUT, "sitecustomize.py"),
        dirs_exist_ok=True,
    )
    interpreter = root / "bin" / "interpreter"
    shutil.copyfile(Path(os.path.realpath(sys.executable)), interpreter)
    interpreter.chmod(0o755)
    python = root / "bin" / "python3"
    shutil.copyfile(launcher, python)
    python.chmod(0o755)
    command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--root-user-action=ignore", "--no-compile", "--target", str(packages), *REQUIREMENTS]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=STEP_TIMEOUT)  # noqa: S603
    shutil.copyfile(OUTPUT, packages / f"retinue_{OUTPUT.name}")
    _add_libraries(library, [interpreter, *library.rglob("*.so"), *library.rglob("*.so.*")])
    # Once, and not in each kernel, which could not keep it.
    compiling = [
        sys.executable,
        "-I",
        "-m",
        "compileall",
        "-q",
        "-j",
        "1",
        "-s",
        str(root),
        "-p",
        PYTHON,
        str(library),
    ]
    subprocess.run(compiling, check=False, capture_output=True, timeout=STEP_TIMEOUT)  # noqa: S603
    for directory, _, _ in os.walk(root):
        Path(directory).chmod(0o755)


def _add_libraries(library: Path, programs: list[Path]) -> None:
    """Puts every library that the programs need, and the dynamic linker, into `library`."""
    ours = {program.name for program in programs}
    listed = subprocess.run(  # noqa: S603
        ["ldd", *map(str, programs)],  # noqa: S607
        check=False,
        capture_output=True,
        text=True,
        timeout=STEP_TIMEOUT,
    ).stdout
    for name, found in _LIBRARY.findall(listed):
        if not name and Path(found).name.startswith("ld-"):
            shutil.copyfile(found, library / "linker")
            (library / "linker").chmod(0o755)
        if name and name not in ours and not (library / name).exists() and not found.startswith(str(library.parent)):
            shutil.copyfile(found, library / name)
    if not (library / "linker").exists():
        raise BuildError("the Python for kernels is not built: the dynamic linker was not found")


def _why(error: Exception) -> str:
    if isinstance(error, shutil.Error):
        # One for each file.
        *_, (_, _, why) = error.args[0]
        return str(why)
    output = getattr(error, "stderr", None) or ""
    return output.strip().rpartition("\n")[2] or str(error)
