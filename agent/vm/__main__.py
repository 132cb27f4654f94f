"""Fetches Debian's Linux for virtual machines, if it is not there yet: `python -m retinue.agent.vm [DIRECTORY]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from retinue.agent.kernel.build import CACHE
from retinue.agent.vm.guest_linux import NoLinuxError, fetch, find

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m retinue.agent.vm", description="Fetch the Linux of virtual machines from Debian's archive."
    )
    parser.add_argument("directory", nargs="?", type=Path, default=CACHE, help=f"where it goes (default: {CACHE})")
    directory = parser.parse_args().directory
    try:
        fetch(directory)
        found = find(directory)
    except NoLinuxError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{found.linux}\n{found.initramfs}\n")
