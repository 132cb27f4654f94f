"""Runs the soak: `python -m tests.soak --minutes 30`; ends with 0 and `soak: ok` when nothing was found.

Two thirds of the time clients act beside random kills and pauses. Then the cluster comes to rest and is measured; in
the last third the same clients act without kills, and at rest every process has to hold what it held before.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import random
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.listeners import IDLE_SECONDS
from tests.soak.clients import ImpatientClient, Record, end_all
from tests.soak.faults import Faults
from tests.soak.footprint import Footprint, database_connections, footprint_of
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.process import ChildProcess

_FORBIDDEN = (
    "Fatal Python error",
    "ResourceClosedError",
    "never retrieved",
    "was never awaited",
    "incident ",
    "Traceback (most recent call last)",
)
_SHARE = 0.05
# What one more cached page, pooled connection or idle worker thread is worth.
_SLACK = Footprint(memory=4096, descriptors=4, threads=4, tasks=3)
_OPTIONS = ClusterOptions(
    agents=2,
    slots={"cpu": "64", "mem": "32g"},
    prefix="rt-soak-",
    heartbeat=1.0,
    suspect_after=5.0,
    lost_after=15.0,
)


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


async def _load(
    cluster: Cluster, record: Record, clients: int, seconds: float, seed: int, faults: Faults | None
) -> None:
    """Lets clients act for so long, beside faults if there are any, and ends what they left."""
    stop, calm = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(ImpatientClient(cluster, record, seed + number).run(stop))
        making = None if faults is None else group.create_task(faults.run(calm))
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(60.0, left))
            _say(f"{sum(record.acts.values())} acts, {len(record.defects)} defects")
        calm.set()
        if making is not None:
            await making
        stop.set()
    async with cluster.client() as client:
        await end_all(client, record)


def _processes(cluster: Cluster) -> list[ChildProcess]:
    return [cluster.manager, *(agent.process for agent in cluster.agents)]


async def _at_rest(cluster: Cluster) -> dict[str, Footprint]:
    """Footprints once nothing of kernels and networks is left, and the manager has ended
    the idle connections of clients that left.
    """
    left = await cluster.wait_clean(NEVER)
    if left:
        raise RuntimeError(f"left on the machine: {left}")
    # gRPC looks as often as that, so that a connection may be idle for twice as long.
    await asyncio.sleep(2 * IDLE_SECONDS + 10)
    footprints = {child.name: await footprint_of(child) for child in _processes(cluster)}
    # A pool opens connections as they are needed and keeps them: how many says what was under way at once,
    # not what leaked.
    name = cluster.manager.name
    pooled = database_connections(cluster.directory / "manager" / "postgres")
    _say(f"{name}: {pooled} connections to the database")
    footprints[name] = replace(footprints[name], descriptors=footprints[name].descriptors - pooled)
    return footprints


async def _mismatches(client: Client) -> int:
    return len((await client.resource_groups.verify()).mismatches)


def _found_in_logs(directory: Path) -> list[str]:
    found = []
    for file in sorted(directory.glob("*.log")):
        text = file.read_text(errors="replace")
        for word in _FORBIDDEN:
            if count := len(re.findall(re.escape(word), text)):
                where = text.index(word)
                found.append(f"{file.name}: {word!r} {count} times, first:\n{text[max(0, where - 500) : where + 2500]}")
    return found


async def soak(minutes: float, clients: int, seed: int, logs: Path | None) -> list[str]:
    """Returns what was found."""
    record, found = Record(), []
    async with Cluster(options=_OPTIONS) as cluster:
        faults = Faults(cluster, seed)
        watching = asyncio.create_task(faults.watch())
        try:
            await _load(cluster, record, clients, minutes * 40, seed, faults)
            _say(f"faults: {dict(faults.made)}")
            # Caches fill once; what counts is what is held after that.
            await _load(cluster, record, clients, minutes * 5, seed + 1000, None)
            before = await _at_rest(cluster)
            await _load(cluster, record, clients, minutes * 15, seed + 2000, None)
            after = await _at_rest(cluster)
            for name, footprint in after.items():
                _say(f"{name}: {before[name]} -> {footprint}")
                found += [f"{name}: {grown}" for grown in footprint.grown_beyond(before[name], _SHARE, _SLACK)]
            async with cluster.client() as client:
                if mismatches := await _mismatches(client):
                    found.append(f"{mismatches} mismatches in the ledger")
        except (TimeoutError, RuntimeError, ExceptionGroup) as error:
            found.append(f"the run broke off: {error!r}")
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            found += [f"exit that no fault made: {text}" for text in faults.unexplained]
            found += record.defects
            found += _found_in_logs(cluster.directory / "logs")
            if logs is not None:
                shutil.copytree(cluster.directory / "logs", logs, dirs_exist_ok=True)
    _say(f"acts: {dict(record.acts)}")
    _say(f"interrupted: {dict(collections.Counter(record.interrupted).most_common(40))}")
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--logs", type=Path, help="directory that the logs are copied to")
    given = parser.parse_args()
    _say(f"seed {given.seed}")
    found = asyncio.run(soak(given.minutes, given.clients, given.seed, given.logs))
    for line in found:
        _say(line)
    _say("soak: ok" if not found else f"soak: {len(found)} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
