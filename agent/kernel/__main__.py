"""Builds all that is put inside kernels, if it is not there yet:
`python -m retinue.agent.kernel [--without-ssh] [DIRECTORY]`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from retinue.agent.kernel.build import CACHE, PROGRAMS, BuildError, build
from retinue.agent.kernel.python_runtime import build_runtime
from retinue.agent.kernel.ssh_programs import build_programs

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m retinue.agent.kernel", description="Build what is put inside kernels."
    )
    parser.add_argument(
        "--without-ssh", action="store_true", help="leave out ssh, which is built from Debian's sources"
    )
    parser.add_argument("directory", nargs="?", type=Path, default=CACHE, help=f"where it goes (default: {CACHE})")
    arguments = parser.parse_args()
    directory = arguments.directory
    try:
        built = [build(directory, name) for name in PROGRAMS]
        if not arguments.without_ssh:
            built.append(build_programs(directory))
        built.append(build_runtime(directory))
    except BuildError as error:
        sys.exit(str(error))
    sys.stdout.write("".join(f"{path}\n" for path in built))
