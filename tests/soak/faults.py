"""Faults at random moments: processes are killed or paused, and started again."""

from __future__ import annotations

import asyncio
import collections
import os
import random
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.devtools.cluster import Cluster
    from retinue.devtools.process import ChildProcess


class Faults:
    """Makes one fault after the other, and knows which processes it ended itself."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._down: set[str] = set()
        self.made: collections.Counter[str] = collections.Counter()
        self.unexplained: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Makes faults until `stop` is set; then everything runs."""
        faults = (
            self._kill_agent,
            self._kill_agent,
            self._kill_manager,
            self._kill_database,
            self._kill_everything,
            self._pause_manager,
            self._pause_agent,
        )
        while not stop.is_set():
            try:
                async with asyncio.timeout(self._random.uniform(5, 25)):
                    await stop.wait()
            except TimeoutError:
                fault = self._random.choice(faults)
                self.made[fault.__name__.lstrip("_")] += 1
                await fault()

    async def watch(self) -> None:
        """Notes every exit that no fault made, once, and starts the process again; until cancelled."""
        while True:
            for child in self._cluster.casualties():
                if child.name not in self._down:
                    self.unexplained.append(f"{child.name} {child.exit_report()}")
                    await child.start()
            await asyncio.sleep(0.5)

    async def _kill_agent(self) -> None:
        index = self._random.randrange(len(self._cluster.agents))
        child = self._cluster.agents[index].process
        self._down.add(child.name)
        await self._cluster.agents[index].process.kill()
        await asyncio.sleep(self._random.uniform(0, 3))
        await self._cluster.start_agent(index)
        self._down.discard(child.name)

    async def _kill_manager(self) -> None:
        child = self._cluster.manager
        self._down.add(child.name)
        await self._cluster.manager.kill()
        await asyncio.sleep(self._random.uniform(0, 3))
        await self._cluster.start_manager()
        self._down.discard(child.name)

    async def _kill_everything(self) -> None:
        await asyncio.gather(self._kill_manager(), self._kill_agent())

    async def _kill_database(self) -> None:
        """The manager starts it again."""
        file = self._cluster.directory / "manager" / "postgres" / "postmaster.pid"
        pid = await asyncio.to_thread(_pid_in, file)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    async def _pause_manager(self) -> None:
        await self._pause(self._cluster.manager)

    async def _pause_agent(self) -> None:
        await self._pause(self._random.choice(self._cluster.agents).process)

    async def _pause(self, child: ChildProcess) -> None:
        child.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._random.uniform(1, 12))
        finally:
            child.signal(signal.SIGCONT)


def _pid_in(file: Path) -> int | None:
    try:
        return int(file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None
