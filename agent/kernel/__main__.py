"""Builds all that is put inside kernels, if it is not there yet: `python -m agent.kernel`."""

from __future__ import annotations

import sys

from agent.kernel.build import BuildError, build
from agent.kernel.python_runtime import build_runtime
from agent.kernel.ssh_programs import build_programs

if __name__ == "__main__":
    try:
        sys.stdout.write(f"{build()}\n{build_programs()}\n{build_runtime()}\n")
    except BuildError as error:
        sys.exit(str(error))
