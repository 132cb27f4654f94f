"""Which points fail when: a few of them in each round of the workload, every one once."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from retinue.devtools.cluster import Cluster, ClusterError, ClusterOptions
from retinue.devtools.process import ChildProcess
from retinue.rpc.failpoints import THREAD_ACTIONS, Action
from tests.failpoints.workload import ROUND_SECONDS, Workload
from tests.support.eventually import eventually
from tests.support.failpoint_sites import points

KILLS = (Action.KILL, Action.KILL_AFTER)
STATEMENTS = ("store.execute@", "store.exec@", "store.get@", "store.get_one@", "store.flush@")
"""A process that is killed within a transaction has committed nothing, whatever statement it was at."""
BLOCKING = ("file.", "record.", "namespace.", "netlink.", "nftables.", "network.session.")
OF_MANAGER = ("store.", "link.", "relay.", "schema.", "database.", "agents.")
OTHERS_IN_A_ROUND, KILLS_OF_MANAGER, KILLS_OF_AGENTS = 29, 5, 5
_FORBIDDEN = re.compile(
    r"Fatal Python error|ResourceClosedError|never retrieved|was never awaited|incident |Traceback \(most recent"
)
# A process writes the first line as it begins, and one of the others once it serves. What cancels the start in between
# ends the program, as a signal would, and nothing but a failpoint does so.
_BEGINS, _SERVES = "starts, with Python", re.compile(r"listens at|ready: users at")
_CANCELLED = re.compile(r"failpoint \S+: cancel\b.*^\s+asyncio\.exceptions\.CancelledError", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Pick:
    """A point with what happens there."""

    point: str
    action: Action

    @classmethod
    def parse(cls, text: str) -> Pick:
        """Returns the pick of a text such as `POINT=ACTION`, with or without a comma after it. Raises ValueError."""
        point, _, action = text.removesuffix(",").rpartition("=")
        return cls(point, Action(action))

    def __str__(self) -> str:
        """As the file that arms it is called."""
        return f"{self.point}={self.action}"

    @property
    def kills_manager(self) -> bool:
        """Whether the manager has to be started again."""
        return self.action in KILLS and self.point.startswith(OF_MANAGER)

    @property
    def kills_agent(self) -> bool:
        """Whether an agent has to be started again; files are written by both."""
        return self.action in KILLS and not self.kills_manager


def picks_of(reached: Iterable[str]) -> list[Pick]:
    """Returns the points with all of their actions."""
    found = []
    for point in sorted(reached):
        actions = THREAD_ACTIONS if point.startswith(BLOCKING) else tuple(Action)
        found += [Pick(point, action) for action in actions if not _is_another(point, action)]
    return found


def _is_another(point: str, action: Action) -> bool:
    """Whether what is left is the same as after another pick: a kill before a commit leaves what the commit before it
    has left.
    """
    return (action in KILLS and point.startswith(STATEMENTS)) or (
        action is Action.KILL and point.startswith("store.commit@")
    )


def rounds_of(picks: Sequence[Pick], chance: random.Random) -> list[list[Pick]]:
    """Returns the picks in rounds: in any order, with few kills in each."""
    shuffled = list(picks)
    chance.shuffle(shuffled)
    waiting = (
        (KILLS_OF_MANAGER, deque(pick for pick in shuffled if pick.kills_manager)),
        (KILLS_OF_AGENTS, deque(pick for pick in shuffled if pick.kills_agent)),
        (OTHERS_IN_A_ROUND, deque(pick for pick in shuffled if pick.action not in KILLS)),
    )
    found = []
    while any(queue for _, queue in waiting):
        found.append([queue.popleft() for most, queue in waiting for _ in range(min(most, len(queue)))])
    return found


@dataclass(slots=True)
class Walk:
    """A cluster whose steps fail, and what was found."""

    cluster: Cluster
    directory: Path
    say: Callable[[str], None]
    found: list[str] = field(default_factory=list)
    fired: set[str] = field(default_factory=set)
    logs: Path | None = None
    _rounds: int = 0
    _read: dict[Path, int] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def begin(
        cls, say: Callable[[str], None], prefix: str = "rt-fp-", logs: Path | None = None
    ) -> AsyncIterator[Walk]:
        """Starts a cluster of two agents, with points that are not armed. `logs` gets a copy of all logs after each
        round that finds something.
        """
        with tempfile.TemporaryDirectory() as directory:
            options = ClusterOptions(
                agents=2,
                slots={"cpu": "8", "mem": "4g"},
                prefix=prefix,
                heartbeat=1.0,
                suspect_after=5.0,
                lost_after=60.0,
                manager_arguments=("--failpoints", directory),
                agent_arguments=("--dev", "--failpoints", directory),
            )
            async with Cluster(options=options) as cluster:
                yield cls(cluster, Path(directory), say, logs=logs)

    def reached(self) -> list[str]:
        """Returns the points that were passed."""
        return sorted(path.name for path in (self.directory / "reached").iterdir())

    async def round(self, picks: Sequence[Pick], *, starts: bool = False) -> list[Pick]:
        """Arms points, and has users act until all is at rest again; returns the picks whose points were not passed.

        With `starts`, all processes are started again at first, as some points are passed then only.
        """
        for pick in picks:
            (self.directory / "armed" / str(pick)).touch()
        began = time.monotonic()
        found: list[str] = []
        keeping = asyncio.create_task(self._keep(found))
        try:
            if starts:
                await self._restart()
            async with self.cluster.client() as client:
                workload = Workload(self.cluster, client)
                await workload.run()
                missed = self._disarm(picks)
                await self._all_alive()
                found += await workload.check()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        found += self._look_at_logs()
        fired = [str(pick) for pick in picks if pick not in missed]
        self.fired.update(fired)
        self.say(f"{len(fired)} of {len(picks)} in {time.monotonic() - began:.0f} s, {len(found)} found")
        self._rounds += 1
        if found:
            if self.logs is not None:
                shutil.copytree(self.cluster.directory / "logs", self.logs / f"round-{self._rounds}")
            self.found += [f"{text}\n  after {', '.join(fired)}" for text in found]
            for text in found:
                self.say(f"FOUND {text}")
            self.say(f"  after {', '.join(fired)}")
        return missed

    def _disarm(self, picks: Sequence[Pick]) -> list[Pick]:
        missed = []
        for pick in picks:
            try:
                (self.directory / "armed" / str(pick)).unlink()
            except FileNotFoundError:
                continue
            missed.append(pick)
        return missed

    def _children(self) -> list[ChildProcess]:
        return [self.cluster.manager, *(agent.process for agent in self.cluster.agents)]

    async def _keep(self, found: list[str]) -> None:
        """Starts what was killed again, as a service manager does; an exit that is no kill was not ordered."""
        while True:
            for child in self.cluster.casualties():
                if child.exit_status != -signal.SIGKILL and not self._may_give_up(child):
                    found.append(f"{child.name} {child.exit_report()}")
                await child.start()
            await asyncio.sleep(0.1)

    def _may_give_up(self, child: ChildProcess) -> bool:
        """Whether a process ended with a sentence that names the step: one that cannot start says so, and ends. So does
        one whose start was cancelled.
        """
        if child.exit_status != 1:
            return False
        life = child.log.read_text(errors="replace").rpartition(_BEGINS)[2]
        return any("failpoint " in line for line in child.last_lines()[-2:]) or is_cancelled_start(life)

    async def _restart(self) -> None:
        for child in self._children():
            await child.kill()

    async def _all_alive(self) -> None:
        async def look() -> bool:
            await self.cluster.start_manager()
            for index in range(len(self.cluster.agents)):
                await self.cluster.wait_agent(index)
            return True

        # One that ends meanwhile is started again, and how it ended is looked at.
        await eventually(look, seconds=ROUND_SECONDS, ignoring=ClusterError)

    def _look_at_logs(self) -> list[str]:
        """Returns what must never be in a log, since the last look."""
        found = []
        for log in sorted((self.cluster.directory / "logs").glob("*.log")):
            with log.open("rb") as file:
                file.seek(self._read.get(log, 0))
                text = file.read().decode(errors="replace")
                self._read[log] = file.tell()
            found += [
                f"{log.name}: {life[max(0, match.start() - 200) : match.start() + 2500]}"
                for life in text.split(_BEGINS)
                if not is_cancelled_start(life)
                for match in list(_FORBIDDEN.finditer(life))[:3]
            ]
        return found


def is_cancelled_start(life: str) -> bool:
    """Whether the log of one process, from its first line on, is that of a start that a failpoint has cancelled."""
    return _CANCELLED.search(life) is not None and _SERVES.search(life) is None


async def learn(walk: Walk) -> list[str]:
    """Returns the points that a start and the workload pass, all of which the source has."""
    await walk.round(())
    reached = walk.reached()
    walk.found += [f"a point that is not enumerated: {point}" for point in sorted(set(reached) - points())]
    return reached


async def sample(walk: Walk, count: int, seed: int) -> None:
    """Has some picks fail: the same for a seed, but for those whose points are new, or are passed by chance only."""
    walk.say(f"{count} picks of seed {seed}")
    picks = sorted(picks_of(await learn(walk)), key=lambda pick: hashlib.sha256(f"{seed} {pick}".encode()).digest())
    for picked in rounds_of(picks[:count], random.Random(seed)):
        await walk.round(picked)


async def everything(walk: Walk, part: int, parts: int, seed: int, seconds: float) -> list[Pick]:
    """Has every pick of one part of `parts` fail once; returns those whose points were not passed again. After so many
    seconds no further round begins.
    """
    end = time.monotonic() + seconds
    picks = picks_of(await learn(walk))
    rounds = rounds_of(picks, random.Random(seed))[part - 1 :: parts]
    walk.say(
        f"{len(points())} points, {len(walk.reached())} passed by the workload; {len(picks)} picks, {len(rounds)} rounds"
    )
    missed: list[Pick] = []
    for number, picked in enumerate(rounds, 1):
        if time.monotonic() > end:
            walk.say("no time is left")
            return missed
        walk.say(f"round {number} of {len(rounds)}")
        missed += await walk.round(picked)
    # What is passed at a start only. What cancels a start is the process's own end.
    again = rounds_of([pick for pick in missed if pick.action is not Action.CANCEL], random.Random(seed))
    missed = []
    for picked in again:
        if time.monotonic() > end:
            break
        missed += await walk.round(picked, starts=True)
    return missed
