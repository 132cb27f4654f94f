"""Processor time of whole commands, beside that of a Python that does nothing. Run as root;
each line is `name value unit peer ratio`.

`help` is `retinue --help`, `ls` lists the sessions of a cluster that has none. All run in turns, each as a process of
its own with what it starts; the value is what a command takes beyond the bare Python.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench.tunnel import environment

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS = 15
COMMANDS = {"help": ["--help"], "ls": ["ls"]}


def processor_seconds(command: Sequence[str], variables: dict[str, str]) -> float:
    """Processor time of a command and of what it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=variables, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(cluster: Cluster) -> None:
    """Measures in turns, so that whatever else the machine does concerns all."""
    program, variables = str(Path(sys.executable).with_name("retinue")), environment(cluster)
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    bare: list[float] = []
    for _ in range(ROUNDS):
        for name, words in COMMANDS.items():
            taken[name].append(processor_seconds([program, *words], variables))
        bare.append(processor_seconds([sys.executable, "-c", "pass"], variables))
    peer = statistics.median(bare)
    for name, values in taken.items():
        beyond = sorted(1000 * (value - peer) for value in values)
        value = statistics.median(beyond)
        spread = f"min={beyond[0]:.0f} max={beyond[-1]:.0f}"
        print(
            f"command-line-{name} {value:.0f} ms python={1000 * peer:.0f} {value / 1000 / peer:.1f} {spread}",
            flush=True,
        )


async def main() -> None:
    """Prints the figures."""
    async with Cluster(options=ClusterOptions(agents=1)) as cluster:
        await asyncio.to_thread(compare, cluster)


if __name__ == "__main__":
    asyncio.run(main())
