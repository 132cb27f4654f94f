"""All links of a leader, and the liveness of the agents behind them."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from retinue.manager.agent_rpc.reach import NotReached
from retinue.manager.dispatch.agent_link import AgentLink, FindRemovable, Listener, ReadDesired
from retinue.manager.dispatch.protected_addresses import node_addresses
from retinue.manager.dispatch.reachability import Reachability
from retinue.manager.domain.agents.liveness import verdict, worsened
from retinue.manager.domain.agents.mass_loss import Member, held_losses
from retinue.manager.domain.scheduling.records import AgentState, LossHold
from retinue.manager.domain.session.attempts import AttemptUsage, ListenerBrokenError, TermOverError, UsageWatch
from retinue.manager.store.postgres.writes import QUIET_SECONDS, Writes
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable

if TYPE_CHECKING:
    import uuid

    from retinue.manager.agent_rpc.dialer import Dialer
    from retinue.manager.domain.agents.timers import Timers
    from retinue.manager.store.fleet.nodes import AgentTarget

_log = logging.getLogger(__name__)

_NOTHING_WATCHED = UsageWatch()
# Agents whose first words are taken in at a time: others of the leader need connections to the database, too.
_WELCOMES = 3
# Of many agents that are dialled first at the same time, the next comes after so many seconds: a handshake takes some
# milliseconds, and a leader that is busy with nothing else for seconds would not renew its lease.
_CROWD, _DIAL_SECONDS = 32, 0.01
# Probes that look at certificates follow each other after so long: all agents of a leader that has just begun are
# without a stream, and to look why must not keep it from opening them.
_PROBE_SECONDS = 0.03

# Takes an agent, its address, and why its port is not reached, or None. Raises ListenerBrokenError and TermOverError.
RecordReach = Callable[[str, str, NotReached | None], Awaitable[None]]


class LivenessListener(Listener, Protocol):
    """Takes in what agents say, and their silence. Raises ListenerBrokenError and TermOverError."""

    async def liveness_changed(self, agent_id: str, state: AgentState, silence: float | None) -> None:
        """An agent's liveness changed; `silence` is the seconds since it was heard,
        None when it was not in this term.
        """

    async def loss_held(self, agent_id: str, why: str) -> None:
        """An agent would be lost, and is kept from it, as so many others are silent."""


class Supervisor:
    """Keeps one link per announced agent, and decides from their silence which are lost."""

    def __init__(
        self,
        *,
        incarnation: str,
        term: int,
        dialer: Dialer,
        timers: Timers,
        targets: Callable[[], Awaitable[Mapping[str, AgentTarget]]],
        desired: ReadDesired,
        removable: FindRemovable,
        listener: LivenessListener,
        clock: Callable[[], float],
        null_kernels: bool = False,
        control_plane: Callable[[], frozenset[str]] = frozenset,
        routers: Callable[[], frozenset[str]] = frozenset,
        check_lease: Callable[[], None] = lambda: None,
        used: Callable[[str, Iterable[AttemptUsage]], None] = lambda _agent, _samples: None,
        reached: RecordReach | None = None,
        writes: Writes | None = None,
    ) -> None:
        """Agents whose kernels do nothing are refused unless `null_kernels` are wanted. `control_plane` are the
        addresses of managers and database, which kernels are kept from like those of nodes.
        `used` is called with what `watch_usage` asks for, and `reached` with whether ports of agents are reached,
        which is not tried without it. Of `writes`, agents are read again after those only; without them, each second.
        """
        self._incarnation = incarnation
        self._term = term
        self._dialer = dialer
        self._timers = timers
        self._targets = targets
        self._desired = desired
        self._removable = removable
        self._listener = listener
        self._clock = clock
        self._null_kernels = null_kernels
        self._links: dict[str, tuple[AgentLink, asyncio.Task[None]]] = {}
        self._known: Mapping[str, AgentTarget] = {}
        self._states: dict[str, AgentState] = {}
        # What is recorded of their losses.
        self._holds: dict[str, LossHold] = {}
        # Agents that have no link, and since when.
        self._unlinked: dict[str, float] = {}
        self._control_plane = control_plane
        self._routers = routers
        self._check_lease = check_lease
        self._protected = control_plane()
        self._changed = asyncio.Event()
        self._writes = writes or Writes()
        self._welcoming = asyncio.Semaphore(_WELCOMES)
        self._probing = asyncio.Lock()
        self._used = used
        self._reached = reached
        self._reachability: dict[str, tuple[Reachability, asyncio.Task[None]]] = {}
        self._usage_watches: Mapping[str, UsageWatch] = {}

    def watch_usage(self, watches: Mapping[str, UsageWatch]) -> None:
        """Makes these agents report what their attempts use from the next heartbeat on; all others do not."""
        self._usage_watches = watches

    def answered(self, attempts: Mapping[str, Collection[str]]) -> None:
        """Lets agents know which of their attempts routers had answers from."""
        for agent_id, found in attempts.items():
            if (entry := self._links.get(agent_id)) is not None:
                entry[0].answered(found)

    def _usage_watch(self, agent_id: str) -> UsageWatch:
        return self._usage_watches.get(agent_id, _NOTHING_WATCHED)

    def wake(self, affected: Mapping[str, Collection[uuid.UUID] | None]) -> None:
        """Notifies the links that the desired state of these agents may have changed, for these sessions;
        None means for any.
        """
        for agent_id, session_ids in affected.items():
            if (entry := self._links.get(agent_id)) is not None:
                entry[0].wake(session_ids)

    def wake_all(self) -> None:
        """Anything may have changed for any agent."""
        for link, _ in self._links.values():
            link.wake()

    def refresh_agents(self) -> None:
        """Agents may have come, moved or gone."""
        self._changed.set()

    async def run(self) -> None:
        """Keeps links and verdicts current until cancelled. Ends with TermOverError only."""
        # A new leader has heard no agent: every silence counts from here.
        started = self._clock()
        try:
            async with asyncio.TaskGroup() as group:
                seen, read_at = -1, started
                while True:
                    asked = self._changed.is_set()
                    self._changed.clear()
                    if asked or self._clock() - read_at >= QUIET_SECONDS or not self._are_current(seen):
                        seen, read_at = self._writes.number, self._clock()
                        # Links continue while the database is away, or what is wrong with one
                        # agent keeps others from being checked.
                        await self._tried("links are not looked after", self._sync_links, group)
                    await self._check_liveness(started)
                    try:
                        async with asyncio.timeout(min(1.0, self._timers.suspect_after / 4)):
                            await self._changed.wait()
                    except TimeoutError:
                        continue
        finally:
            self._links.clear()
            self._reachability.clear()

    def _are_current(self, seen: int) -> bool:
        """Returns whether agents are known as they were read when the number of writes was `seen`."""
        return self._writes.knows_none_since(seen) and all(state is AgentState.ALIVE for state in self._states.values())

    async def _tried(self, what: str, step: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        try:
            await cancellable(step, *args)
        except TermOverError:
            raise
        except Exception as error:  # noqa: BLE001  # logged, and done again with the next round
            known = isinstance(error, ListenerBrokenError | UnrequestedCancellationError)
            _log.log(logging.WARNING if known else logging.ERROR, "%s: %r", what, error, exc_info=not known)

    async def _sync_links(self, group: asyncio.TaskGroup) -> None:
        targets = await self._targets()
        addresses = [address for target in targets.values() for address in (target.address, target.underlay_address)]
        self._protected = self._control_plane() | node_addresses(addresses)
        for agent_id, (link, task) in list(self._links.items()):
            target = targets.get(agent_id)
            if target is None or not target.dialled or target.address != link.address:
                task.cancel()
                del self._links[agent_id]
                self._forget_reachability(agent_id)
        # As stored: a node that enrols again joins as a new one, whatever was found of it before.
        self._known = targets
        self._states = {agent_id: target.state for agent_id, target in targets.items()}
        self._holds = {agent_id: target.hold for agent_id, target in targets.items()}
        now = self._clock()
        self._unlinked = {
            agent_id: self._unlinked.get(agent_id, now) for agent_id, target in targets.items() if not target.dialled
        }
        new = 0
        for agent_id, target in targets.items():
            if agent_id not in self._links and target.dialled:
                new += 1
                delay = max(0, new - _CROWD) * _DIAL_SECONDS
                link = AgentLink(
                    agent_id,
                    target.address,
                    incarnation=self._incarnation,
                    term=self._term,
                    dialer=self._dialer,
                    heartbeat=self._timers.heartbeat,
                    lost_after=self._timers.lost_after,
                    desired=self._desired,
                    removable=self._removable,
                    protected=lambda: self._protected,
                    routers=self._routers,
                    listener=self._listener,
                    clock=self._clock,
                    null_kernels=self._null_kernels,
                    usage_watch=functools.partial(self._usage_watch, agent_id),
                    used=self._used,
                    check_lease=self._check_lease,
                    turned=functools.partial(self._turned, agent_id),
                    welcoming=self._welcoming,
                    delay=delay,
                )
                self._links[agent_id] = (link, group.create_task(cancellable(link.run), name=f"link {agent_id}"))
                if self._reached is not None:
                    self._watch_reachability(group, link, self._reached, delay)

    def look_for(self, agent_id: str) -> None:
        """Has it tried now whether an agent's port is reached."""
        if (entry := self._reachability.get(agent_id)) is not None:
            entry[0].wake()

    def _turned(self, agent_id: str) -> None:
        if (entry := self._reachability.get(agent_id)) is not None:
            entry[0].turn()

    def _watch_reachability(self, group: asyncio.TaskGroup, link: AgentLink, record: RecordReach, delay: float) -> None:
        reachability = Reachability(
            link,
            self._dialer,
            record,
            interval=self._timers.probe,
            retry=self._timers.probe_again,
            delay=delay,
            turn=self._take_probing_turn,
        )
        task = group.create_task(cancellable(reachability.run), name=f"reachability of {link.agent_id}")
        self._reachability[link.agent_id] = (reachability, task)

    async def _take_probing_turn(self) -> None:
        async with self._probing:
            await asyncio.sleep(_PROBE_SECONDS)

    def _forget_reachability(self, agent_id: str) -> None:
        if (entry := self._reachability.pop(agent_id, None)) is not None:
            entry[1].cancel()

    async def _check_liveness(self, started: float) -> None:
        now = self._clock()
        judged = {agent_id: self._judge(agent_id, state, started, now) for agent_id, state in self._states.items()}
        held = held_losses(self._members(judged), self._timers)
        for agent_id in judged:
            # Others took a while to record: it may have been heard since.
            found, silence, heard = self._judge(agent_id, self._states[agent_id], started, now)
            why = held.get(agent_id)
            state = AgentState.SUSPECT if why is not None and found is AgentState.LOST else found
            since = silence if heard else None
            if state is not self._states[agent_id]:
                level = logging.INFO if state is AgentState.ALIVE else logging.WARNING
                _log.log(level, "agent %s is %s after %.1f s of silence", agent_id, state, silence)
                await self._tried(f"agent {agent_id} is not recorded as {state}", self._become, agent_id, state, since)
            if found is AgentState.LOST and why is not None and self._holds[agent_id] is not LossHold.HELD:
                _log.warning("agent %s is not taken for lost after %.1f s of silence: %s", agent_id, silence, why)
                await self._tried(f"the loss of agent {agent_id} is not recorded as held", self._hold, agent_id, why)

    def _judge(self, agent_id: str, state: AgentState, started: float, now: float) -> tuple[AgentState, float, bool]:
        """Returns the state that an agent's silence means by itself, that silence, and whether it was heard in this
        term.
        """
        link = self._links[agent_id][0] if agent_id in self._links else None
        heard = None if link is None else link.heard
        # One that came back at another address has not been silent for longer than it was dialled there; one that
        # was revoked, for longer than it has no link: only after that has it stopped what
        # may be run on another agent.
        since = self._unlinked.get(agent_id, now) if link is None else link.opened
        silence = now - (max(started, since) if heard is None else heard)
        found = worsened(state, silence, self._timers) if heard is None else verdict(silence, self._timers)
        return found, silence, heard is not None

    def _members(self, judged: Mapping[str, tuple[AgentState, float, bool]]) -> Iterator[Member]:
        """Yields the agents of groups in which losses may be held."""
        for agent_id, (_, in_term, heard) in judged.items():
            target, state = self._known[agent_id], self._states[agent_id]
            if target.mass_loss is None or target.revoked:
                continue
            # It may have been lost for long before this term.
            stored = float("inf") if target.silence is None else target.silence
            silence = max(in_term, stored) if state is AgentState.LOST and not heard else in_term
            hold, counts = self._holds[agent_id], not target.drained
            yield Member(agent_id, target.group, target.mass_loss, state, silence, hold, counts)

    async def _become(self, agent_id: str, state: AgentState, silence: float | None) -> None:
        await self._listener.liveness_changed(agent_id, state, silence)
        # From then on only: what was not recorded is tried again with the next round.
        self._states[agent_id] = state

    async def _hold(self, agent_id: str, why: str) -> None:
        await self._listener.loss_held(agent_id, why)
        self._holds[agent_id] = LossHold.HELD
