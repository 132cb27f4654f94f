"""How long code takes from a client through manager and agent into a Jupyter kernel and back. Run as root;
lines as in `tests.bench`.

The peer is `jupyter_client` on the same Jupyter kernel, over the same sockets, from this machine, without anything
between; in turns with ours, so that both see the same load.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

from jupyter_client.asynchronous.client import AsyncKernelClient

from retinue.agent.kernel.code_launcher import PORTS
from retinue.agent.kernel.python_runtime import build_runtime
from retinue.devtools.cluster import Cluster, ClusterOptions

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.kernel.code import Code

ROUNDS = 100
WARM = 10
# One value, and output in pieces.
PROGRAMS = {"value": "6 * 7", "20-lines": "for n in range(20): print(n, flush=True)"}


def connect(directory: Path) -> AsyncKernelClient:
    """A client of the one Jupyter kernel that the agents beneath the directory have started."""
    (record,) = directory.rglob("code/*.json")
    known = json.loads(record.read_text())
    (attempt,) = directory.rglob(f"attempts/{record.stem[:-33]}/record.json")
    place = f"/proc/{json.loads(attempt.read_text())['init']['pid']}/root/tmp/{known['directory']}/s"
    client = AsyncKernelClient()
    connection: Any = {"transport": "ipc", "ip": place, "key": known["key"], **PORTS}
    client.load_connection_info(connection)
    client.start_channels()
    return client


async def ours(code: Code, program: str) -> float:
    """Seconds until the run was known to be over."""
    began = time.perf_counter()
    async for _ in code.run(program):
        pass
    return time.perf_counter() - began


async def direct(client: AsyncKernelClient, program: str) -> float:
    """Seconds until the answer was here, and all that came with it."""
    began = time.perf_counter()
    await client.execute_interactive(program, output_hook=lambda _: None, allow_stdin=False)
    return time.perf_counter() - began


async def main() -> None:
    """Prints the figures."""
    await asyncio.to_thread(build_runtime)
    async with Cluster(options=ClusterOptions(agents=1)) as cluster, cluster.client() as manager:
        session = await manager.sessions.create(
            type="interactive", slots={"cpu": "1", "mem": "512m"}, termination_grace=0
        )
        await session.wait("RUNNING", timeout=60)
        async with session.code() as code:
            await code.execute("0")
            client = connect(cluster.directory)
            try:
                await client.wait_for_ready(60)
                for name, program in PROGRAMS.items():
                    rounds = [(await ours(code, program), await direct(client, program)) for _ in range(WARM + ROUNDS)]
                    show(name, rounds[WARM:])
            finally:
                client.stop_channels()


def show(name: str, rounds: list[tuple[float, float]]) -> None:
    """Prints a figure: the median, beside that of the peer, and the quarters around it."""
    mine, theirs = (statistics.median(values) for values in zip(*rounds, strict=True))
    low, _, high = statistics.quantiles([one for one, _ in rounds], n=4)
    spread = f"min={low * 1000:.2f} max={high * 1000:.2f}"
    print(
        f"code-round-trip-{name} {mine * 1000:.2f} ms jupyter_client={theirs * 1000:.2f} {mine / theirs:.2f} {spread}"
    )


if __name__ == "__main__":
    asyncio.run(main())
