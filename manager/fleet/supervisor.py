"""All links of a leader, and the liveness of the agents behind them."""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from manager.fleet.desired import AttemptUsage
from manager.fleet.dialer import Dialer
from manager.fleet.link import AgentLink, Listener, ReadDesired
from manager.fleet.protected import node_addresses

_log = logging.getLogger(__name__)

ALIVE, SUSPECT, LOST = "ALIVE", "SUSPECT", "LOST"


@dataclass(frozen=True, slots=True)
class Timers:
    """In seconds: how often links say something, and after which silence an agent is suspect and lost."""

    heartbeat: float = 5.0
    suspect_after: float = 20.0
    lost_after: float = 60.0

    @property
    def fence_after(self) -> float:
        """Seconds without contact after which an agent stops what may be run elsewhere once it is lost: it must be over by then."""
        return self.lost_after * 0.6


@dataclass(frozen=True, slots=True)
class Target:
    """An agent to keep a link to, and how the database last saw it."""

    address: str
    state: str
    underlay_address: str = ""


class LivenessListener(Listener, Protocol):
    """Takes in what agents say, and their silence."""

    async def became(self, agent_id: str, state: str, silence: float) -> None:
        """An agent's liveness changed; `silence` is in seconds."""


def verdict(silence: float, timers: Timers) -> str:
    """What a silence of so many seconds says of an agent."""
    if silence >= timers.lost_after:
        return LOST
    return SUSPECT if silence >= timers.suspect_after else ALIVE


class Supervisor:
    """Keeps one link per announced agent, and judges their silence."""

    def __init__(
        self,
        *,
        term: int,
        dialer: Dialer,
        timers: Timers,
        targets: Callable[[], Awaitable[Mapping[str, Target]]],
        desired: ReadDesired,
        listener: LivenessListener,
        clock: Callable[[], float],
        null_kernels: bool = False,
        control_plane: frozenset[str] = frozenset(),
        used: Callable[[Iterable[AttemptUsage]], None] = lambda _: None,
    ) -> None:
        """Agents whose kernels do nothing are refused unless `null_kernels` are wanted. `control_plane` are the addresses of
        managers and database, which kernels are kept from like those of nodes. `used` is told what `watch_usage` asks for.
        """
        self._term = term
        self._dialer = dialer
        self._timers = timers
        self._targets = targets
        self._desired = desired
        self._listener = listener
        self._clock = clock
        self._null_kernels = null_kernels
        self._links: dict[str, tuple[AgentLink, asyncio.Task[None]]] = {}
        self._states: dict[str, str] = {}
        self._control_plane = control_plane
        self._protected = control_plane
        self._changed = asyncio.Event()
        self._used = used
        self._usage_intervals: Mapping[str, float] = {}

    def watch_usage(self, intervals: Mapping[str, float]) -> None:
        """From the next heartbeat on, these agents tell what their attempts use, every so many seconds; all others do not."""
        self._usage_intervals = intervals

    def _usage_interval(self, agent_id: str) -> float:
        return self._usage_intervals.get(agent_id, 0.0)

    def wake(self, concerned: Mapping[str, Collection[uuid.UUID] | None]) -> None:
        """What is wanted of these agents may have changed, for these sessions; None means for any."""
        for agent_id, session_ids in concerned.items():
            if (entry := self._links.get(agent_id)) is not None:
                entry[0].wake(session_ids)

    def wake_all(self) -> None:
        """Anything may have changed for any agent."""
        for link, _ in self._links.values():
            link.wake()

    def alive(self) -> list[str]:
        """Agents that are heard of."""
        return [agent_id for agent_id, state in self._states.items() if state == ALIVE]

    def retarget(self) -> None:
        """Agents may have come, moved or gone."""
        self._changed.set()

    async def run(self) -> None:
        """Keeps links and verdicts current until cancelled."""
        # A new leader has heard nobody: every silence counts from here.
        started = self._clock()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    await self._aim(group)
                    await self._judge(started)
                    try:
                        async with asyncio.timeout(min(1.0, self._timers.suspect_after / 4)):
                            await self._changed.wait()
                    except TimeoutError:
                        continue
        finally:
            self._links.clear()

    async def _aim(self, group: asyncio.TaskGroup) -> None:
        targets = await self._targets()
        places = [place for target in targets.values() for place in (target.address, target.underlay_address)]
        self._protected = self._control_plane | node_addresses(places)
        for agent_id, (link, task) in list(self._links.items()):
            target = targets.get(agent_id)
            if target is None or target.address != link.address:
                task.cancel()
                del self._links[agent_id]
        for agent_id, target in targets.items():
            self._states.setdefault(agent_id, target.state)
            if agent_id not in self._links and target.address:
                link = AgentLink(
                    agent_id,
                    target.address,
                    term=self._term,
                    dialer=self._dialer,
                    heartbeat=self._timers.heartbeat,
                    desired=self._desired,
                    protected=lambda: self._protected,
                    listener=self._listener,
                    clock=self._clock,
                    null_kernels=self._null_kernels,
                    usage_interval=functools.partial(self._usage_interval, agent_id),
                    used=self._used,
                )
                self._links[agent_id] = (link, group.create_task(link.run(), name=f"link {agent_id}"))

    async def _judge(self, started: float) -> None:
        now = self._clock()
        for agent_id, (link, _) in list(self._links.items()):
            if link.heard is None and self._states.get(agent_id) == "JOINING":
                continue
            # One that came back at another address has not been silent for longer than it was dialled there.
            silence = now - (max(started, link.opened) if link.heard is None else link.heard)
            if link.heard is None and silence < self._timers.suspect_after:
                continue
            state = verdict(silence, self._timers)
            if state != self._states.get(agent_id):
                level = logging.INFO if state == ALIVE else logging.WARNING
                _log.log(level, "agent %s is %s after %.1f s of silence", agent_id, state, silence)
                self._states[agent_id] = state
                await self._listener.became(agent_id, state, silence)
