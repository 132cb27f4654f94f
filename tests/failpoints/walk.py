"""Which points fail when: a few of them in each round of the workload, every one once."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import random
import re
import shutil
import signal
import tempfile
import time
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster, ClusterError, ClusterOptions, free_ports
from retinue.rpc.failpoints import THREAD_ACTIONS, Action
from tests.failpoints.workload import Workload
from tests.support.eventually import eventually
from tests.support.failpoint_sites import points

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from retinue.devtools.process import ChildProcess

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
    """Returns the picks in rounds: in any order, with few kills in each, and each point once, as many points are passed
    once in a round.
    """
    shuffled = list(picks)
    chance.shuffle(shuffled)
    waiting = (
        (KILLS_OF_MANAGER, [pick for pick in shuffled if pick.kills_manager]),
        (KILLS_OF_AGENTS, [pick for pick in shuffled if pick.kills_agent]),
        (OTHERS_IN_A_ROUND, [pick for pick in shuffled if pick.action not in KILLS]),
    )
    found = []
    while any(queue for _, queue in waiting):
        picked: dict[str, Pick] = {}
        for most, queue in waiting:
            chosen: dict[str, Pick] = {}
            for pick in queue:
                if len(chosen) < most and pick.point not in picked:
                    chosen.setdefault(pick.point, pick)
            queue[:] = [pick for pick in queue if pick is not chosen.get(pick.point)]
            picked |= chosen
        found.append(list(picked.values()))
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
            async with Cluster(options=_options(directory, prefix)) as cluster:
                yield cls(cluster, Path(directory), say, logs=logs)

    async def first_start(self, picks: Sequence[Pick]) -> list[Pick]:
        """Has points of the first start of a cluster fail: one that has nothing yet, and that is started again until it
        runs, with what the starts before have left. Returns the picks whose points were not passed.
        """
        with tempfile.TemporaryDirectory() as points, tempfile.TemporaryDirectory() as data:
            # The same ports at each start: nodes that have enrolled know where to announce themselves.
            cluster = Cluster(Path(data), replace(_options(points, "rt-fs-"), port=free_ports().users))
            new = Walk(cluster, Path(points), self.say, self.found, self.fired, self.logs, self._rounds)
            new._arm(picks)
            try:
                if not await new._start():
                    return []
                return await new.round(picks, arms=False)
            finally:
                self._rounds = new._rounds
                await cluster.stop()

    async def _start(self) -> bool:
        """Starts the cluster until it runs; returns whether it does. Only what fails at a point ends a start."""
        fired = -1
        while len(self._fired()) > fired:
            fired = len(self._fired())
            try:
                await self.cluster.start()
            except ClusterError as error:
                failure = f"a first start fails: {error}\n  after {', '.join(self._fired())}"
            else:
                return True
        self.found.append(failure)
        self.say(f"FOUND {failure}")
        return False

    def _fired(self) -> list[str]:
        fired = self.directory / "fired"
        return sorted(path.name for path in fired.iterdir()) if fired.is_dir() else []

    def _arm(self, picks: Sequence[Pick]) -> None:
        armed = self.directory / "armed"
        armed.mkdir(mode=0o700, exist_ok=True)
        for pick in picks:
            (armed / str(pick)).touch()

    def reached(self) -> list[str]:
        """Returns the points that were passed."""
        return sorted(path.name for path in (self.directory / "reached").iterdir())

    async def round(self, picks: Sequence[Pick], *, starts: bool = False, arms: bool = True) -> list[Pick]:
        """Arms points, and has users act until all is at rest again; returns the picks whose points were not passed.

        With `starts`, all processes are started again at first, as some points are passed then only. Without `arms`,
        they were armed before.
        """
        if arms:
            self._arm(picks)
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
                kept = self.logs / f"{self.cluster.directory.name}-{self._rounds}"
                shutil.copytree(self.cluster.directory / "logs", kept)
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
        await eventually(look, ignoring=ClusterError)

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


def _options(points: str, prefix: str) -> ClusterOptions:
    return ClusterOptions(
        agents=2,
        slots={"cpu": "8", "mem": "4g"},
        prefix=prefix,
        heartbeat=1.0,
        suspect_after=5.0,
        lost_after=60.0,
        manager_arguments=("--failpoints", points),
        agent_arguments=("--dev", "--failpoints", points),
    )


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


async def everything(walks: Sequence[Walk], part: int, parts: int, seed: int, seconds: float) -> list[Pick]:
    """Has every pick of one part of `parts` fail once, each on one of the clusters, which share the rounds; returns
    those whose points were not passed again. After so many seconds no further round begins.
    """
    end, first = time.monotonic() + seconds, walks[0]
    picks = picks_of(await learn(first))
    rounds = rounds_of(picks, random.Random(seed))[part - 1 :: parts]
    first.say(
        f"{len(points())} points, {len(first.reached())} passed by the workload; {len(picks)} picks, {len(rounds)} rounds"
    )
    missed = await _share(walks, rounds, Walk.round, end)
    # What is passed at a start only, or at the first one only. What cancels a start is the process's own end.
    for act in (functools.partial(Walk.round, starts=True), Walk.first_start):
        rest = [pick for pick in missed if pick.action is not Action.CANCEL]
        missed = await _share(walks, rounds_of(rest, random.Random(seed)), act, end)
    return missed


async def _share(
    walks: Sequence[Walk],
    rounds: Sequence[list[Pick]],
    act: Callable[[Walk, Sequence[Pick]], Awaitable[list[Pick]]],
    end: float,
) -> list[Pick]:
    """Has each cluster take the next round once it is done with one, until the time `end`; returns the picks whose
    points were not passed, and those of rounds that did not begin.
    """
    waiting, missed = deque(enumerate(rounds, 1)), []

    async def take(walk: Walk) -> None:
        while waiting and time.monotonic() < end:
            number, picked = waiting.popleft()
            walk.say(f"round {number} of {len(rounds)}")
            missed.extend(await act(walk, picked))

    async with asyncio.TaskGroup() as group:
        for walk in walks:
            group.create_task(take(walk))
    if waiting:
        walks[0].say("no time is left")
    return [*missed, *(pick for _, picked in waiting for pick in picked)]
