"""Starts of containers through the whole system against bare `docker run -d` of the same image and limits,
on the same engine.

One: from the request to RUNNING seen by a watching client, in turns with the peer, so that both meet the same noise.
Parallel: many at once until the last one runs; the peer is the best of several numbers of `docker run` at a time.
Each line is `name value unit peer ratio`, then spread.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.integration.agent.docker.engine import IMAGE, TestEngine, install

if TYPE_CHECKING:
    from retinue.client.aio import Client

MEMORY = 32 << 20
LIMITS = ("--memory", str(MEMORY), "--memory-swap", str(MEMORY), "--cpu-quota", "10000", "--pids-limit", "4096")
HARDENED = ("--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "60000:60000")
WORKERS = (2, 4)
AT_A_TIME = 4
COMMAND = ("sleep", "1000")


async def bare(engine: TestEngine) -> str:
    """Starts one by the command line; its id."""
    arguments = (
        "docker",
        "--host",
        engine.host,
        "run",
        "-d",
        "--log-driver",
        "local",
        *LIMITS,
        *HARDENED,
        IMAGE,
        *COMMAND,
    )
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError("docker run failed")
    return output.decode().strip()


def clear(engine: TestEngine, names: list[str]) -> None:
    """Removes containers that the peer has started, as many at a time as the engine likes."""
    client = engine.client()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for _ in pool.map(lambda name: client.remove_container(name, force=True), names):
            pass
    client.close()


async def ours(client: Client, count: int) -> float:
    """Seconds until so many sessions, asked for at once, are seen running; they are ended then."""
    began = time.perf_counter()
    sessions = await asyncio.gather(
        *(
            client.sessions.create(
                type="interactive",
                image=IMAGE,
                command=COMMAND,
                slots={"cpu": "0.1", "mem": "32m"},
                termination_grace=0,
            )
            for _ in range(count)
        )
    )
    await asyncio.gather(*(session.wait("RUNNING", timeout=120) for session in sessions))
    took = time.perf_counter() - began
    await asyncio.gather(*(session.terminate() for session in sessions))
    await asyncio.gather(*(session.wait_ended(120) for session in sessions))
    return took


async def theirs(engine: TestEngine, count: int, workers: int) -> float:
    """Seconds for so many `docker run`, so many at a time; what they started is removed."""
    names: list[str] = []
    places = asyncio.Semaphore(workers)

    async def one() -> None:
        async with places:
            names.append(await bare(engine))

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    took = time.perf_counter() - began
    await asyncio.to_thread(clear, engine, names)
    return took


def show(name: str, values: list[float], peers: list[float]) -> None:
    """Prints a line."""
    value, peer = statistics.median(values), statistics.median(peers)
    spread = f"min={min(values) * 1000:.0f} max={max(values) * 1000:.0f}"
    print(f"{name} {value * 1000:.0f} ms {peer * 1000:.0f} {value / peer:.2f} {spread}", flush=True)


async def main(rounds: int, together: int) -> None:
    """Prints the figures."""
    install()
    engine = TestEngine()
    try:
        engine.start()
        engine.make_image()
        options = ClusterOptions(agents=1, slots={"cpu": "16", "mem": "8g"}, engine=lambda *_: engine.host)
        async with Cluster(options=options) as cluster, cluster.client() as client:
            values, peers = [], []
            for number in range(-1, rounds):
                value, peer = await ours(client, 1), await theirs(engine, 1, 1)
                if number >= 0:
                    values.append(value)
                    peers.append(peer)
            show("docker-start", values, peers)
            values, peers = [], []
            for _ in range(max(1, rounds // 7)):
                values.append(await ours(client, together))
                peers.append(min([await theirs(engine, together, workers) for workers in WORKERS]))
            show(f"docker-start-{together}-parallel", values, peers)
    finally:
        engine.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    quick = parser.parse_args().quick
    asyncio.run(main(5 if quick else 15, 20))
