"""Many files through `retinue sftp`, beside the same server reached directly. Run as root;
each line is `name value unit peer ratio`.

64 uploads at once of 4 MiB each, which is more connections than a session gives in less than 512 MiB of memory; and a
list of a directory of 100,000 entries. The roads are those of `sftp`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from typing import TYPE_CHECKING

from tests.bench.sftp import WAYS, Road, Served, measure, roads

if TYPE_CHECKING:
    from pathlib import Path

PARALLEL = 64
ROUNDS = 3
ENTRIES = 100_000


def many(ways: dict[str, Road], directory: Path) -> None:
    """So many uploads at once, of 4 MiB each."""
    part = directory / "part"
    part.write_bytes(os.urandom(4 << 20))
    taken = {}
    for way, road in ways.items():
        with road.refusing():
            began = time.perf_counter()
            running = [road.start(f"put {part} many-{way}-{number}\n") for number in range(PARALLEL)]
            failed = sum(process.wait() != 0 for process in running)
            taken[way] = time.perf_counter() - began
        if failed:
            print(f"sftp-parallel-failed-{way} {failed} transfers of {PARALLEL}", flush=True)
    for way, row in WAYS.items():
        ours, other = (PARALLEL / taken[key] for key in (way, "direct"))
        print(f"{row}-parallel-{PARALLEL} {ours:.1f} transfers/s direct={other:.1f} {ours / other:.2f}", flush=True)


def listing(ways: dict[str, Road], shared: Path) -> None:
    """A directory of very many entries."""
    (shared / "many").mkdir()
    for number in range(ENTRIES):
        (shared / "many" / f"entry-{number:06d}").touch()
    taken = {way: statistics.median(road.seconds("ls -1 many\n") for _ in range(ROUNDS)) for way, road in ways.items()}
    other = taken["direct"]
    for way, row in WAYS.items():
        print(f"{row}-list-{ENTRIES} {taken[way]:.2f} s direct={other:.2f} {taken[way] / other:.2f}", flush=True)


def compare(served: Served, directory: Path) -> None:
    """Prints both."""
    ways = roads(served, directory)
    many(ways, directory)
    listing(ways, served.shared)


if __name__ == "__main__":
    asyncio.run(measure(compare))
