"""Builds all that is put inside kernels, if it is not there yet: `python -m agent.kernel [DIRECTORY]`."""

from __future__ import annotations

import sys
from pathlib import Path

from agent.kernel.build import CACHE, PROGRAMS, BuildError, build
from agent.kernel.python_runtime import build_runtime
from agent.kernel.ssh_programs import build_programs

if __name__ == "__main__":
    directory = Path(sys.argv[1]) if sys.argv[1:] else CACHE
    try:
        for name in PROGRAMS:
            sys.stdout.write(f"{build(directory, name)}\n")
        sys.stdout.write(f"{build_programs(directory)}\n{build_runtime(directory)}\n")
    except BuildError as error:
        sys.exit(str(error))
