"""Files through `retinue cp`, beside `scp` and `cat` through ssh. Run as root;
each line is `name value unit peer ratio`.

One file of bytes that do not compress goes to the work directory of a kernel, and comes back. Ours goes by TLS to the
agent, past the manager, as the client reaches the node; an upload is on the disk when it has ended.
The peers are OpenSSH with its fastest cipher here (aes128-gcm), in one hop to a server on this machine's loopback
address: `scp`, and `cat` to and from a pipe; neither hashes anything, nor waits for the disk. All are whole commands in
a process of their own, with their start. Ratios above 1 say that ours carries more.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench.tunnel import environment, server

if TYPE_CHECKING:
    from collections.abc import Iterator

MEGABYTES = 256
ROUNDS = 3


def seconds(command: list[str], variables: dict[str, str] | None = None) -> float:
    """How long a command takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True, env=variables, capture_output=True)
    return time.perf_counter() - began


@contextmanager
def peers(directory: Path, source: Path) -> Iterator[dict[str, list[list[str]]]]:
    """What copies the file by ssh: how it goes there and how it comes back, by the name of the peer."""
    with server(directory) as (options, port):
        there, back, host = directory / "there", directory / "back", "root@127.0.0.1"
        ssh = ["ssh", *options, "-p", str(port), host]
        scp = ["scp", *options, "-P", str(port)]
        yield {
            "scp": [[*scp, str(source), f"{host}:{there}"], [*scp, f"{host}:{there}", str(back)]],
            "ssh-cat": [
                ["sh", "-c", f'"$@" "cat >{there}" <{source}', "sh", *ssh],
                ["sh", "-c", f'"$@" "cat {there}" >{back}', "sh", *ssh],
            ],
        }


def compare(cluster: Cluster, session: str) -> None:
    """Measures in turns, so that whatever else the machine does concerns all."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source, back = directory / "source", directory / "came"
        with source.open("wb") as file:
            for _ in range(MEGABYTES):
                file.write(os.urandom(1 << 20))
        program = str(Path(sys.executable).with_name("retinue"))
        copies = ([program, "cp", str(source), f"{session}:file"], [program, "cp", f"{session}:file", str(back)])
        variables = environment(cluster)
        with peers(directory, source) as others:
            for place, figure in enumerate(("files-up", "files-down")):
                rounds: dict[str, list[float]] = {name: [] for name in ("ours", *others)}
                for _ in range(ROUNDS):
                    rounds["ours"].append(seconds(copies[place], variables))
                    for peer, commands in others.items():
                        rounds[peer].append(seconds(commands[place]))
                show(figure, rounds)
        assert back.read_bytes() == source.read_bytes()


def show(figure: str, rounds: dict[str, list[float]]) -> None:
    """Prints a figure for each peer."""
    ours = sorted(MEGABYTES / taken for taken in rounds.pop("ours"))
    rate = statistics.median(ours)
    for peer, taken in rounds.items():
        other = MEGABYTES / statistics.median(taken)
        spread = f"min={ours[0]:.0f} max={ours[-1]:.0f}"
        print(f"{figure}-{peer} {rate:.0f} MiB/s {peer}={other:.0f} {rate / other:.2f} {spread}", flush=True)


async def main() -> None:
    """Prints the figures."""
    async with Cluster(options=ClusterOptions(agents=1)) as cluster, cluster.client() as client:
        session = await client.sessions.create(
            type="interactive", slots={"cpu": "1", "mem": "128m"}, termination_grace=0
        )
        await session.wait("RUNNING", timeout=60)
        await asyncio.to_thread(compare, cluster, session.id)
        await session.terminate(force=True)
        await session.wait_ended(60)


if __name__ == "__main__":
    asyncio.run(main())
