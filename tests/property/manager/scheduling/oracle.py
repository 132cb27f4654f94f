"""The scheduler again, as short and plain as it can be: rationals, full scans, no memory.
What the fast pass must equal.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from fractions import Fraction

DEFAULT_PRIORITY = ("cuda", "rocm", "tpu", "cpu", "mem")


@dataclass
class Agent:
    """An agent: amounts by slot."""

    id: str
    capacity: dict[str, int]
    free: dict[str, int]
    schedulable: bool = True
    architecture: str = "x86_64"
    offers: frozenset[int] = frozenset({0, 1})


@dataclass
class Session:
    """A waiting session: its kernels' amounts by slot."""

    id: str
    owner: str
    order: int
    kernels: list[dict[str, int]]
    priority: int = 10
    single_node: bool = False
    architecture: str = ""
    tries: int = 0
    held_back: bool = False
    avoided: tuple[str, ...] = ()
    designated: tuple[str, ...] = ()
    strict: bool = False
    # Features that each kernel needs of its agent, by rank; empty means none.
    needs: list[frozenset[int]] = field(default_factory=list)
    # Endpoint that it is a replica of, and whether its replicas pack.
    endpoint: str = ""
    pack: bool = False
    # Seconds that it may run, and agents that room is kept for it on, by kernel.
    limit: float = math.inf
    nomination: list[str] = field(default_factory=list)


@dataclass
class Placed:
    """A placed session: (agent, amounts) of its kernels, and when it ends."""

    id: str
    priority: int
    preemptible: bool
    kernels: list[tuple[str, dict[str, int]]]
    end: float = math.inf
    # Ends by itself some time.
    finishing: bool = False


@dataclass
class Cluster:
    """A whole problem. `owners` are in tie order, with weight and amounts held."""

    slots: list[str]
    agents: list[Agent]
    owners: dict[str, tuple[int, dict[str, int]]]
    sessions: list[Session]
    session_strategy: str = "drf"
    agent_strategy: str = "concentrated"
    max_tries: int = 0
    round_robin_cursor: str = ""
    # Live kernels by endpoint and agent.
    replicas: dict[str, dict[str, int]] = field(default_factory=dict)
    decisions: list[tuple[str, list[str]]] = field(default_factory=list)
    # In the order in which they were placed.
    running: list[Placed] = field(default_factory=list)
    reserve_after: int = 0
    preemption_order: str = ""
    # (winner, its agents, victims).
    preemptions: list[tuple[str, list[str], list[str]]] = field(default_factory=list)
    reservation: tuple[str, float, list[str]] | None = None
    spare: dict[str, dict[str, int]] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)

    def run(self) -> list[tuple[str, list[str]]]:
        """Decides; (session, agents of its kernels) in order."""
        for session in self.sessions:
            self.hold(session.nomination, session.kernels)
        waiting = [session for session in self.sessions if not session.held_back]
        for session in sorted(waiting, key=lambda s: (-s.priority, s.order)):
            if session.nomination and self._is_free(session):
                self._decide(session, session.nomination)
        waiting = [session for session in waiting if not session.nomination and self._has_agents(session)]
        self._fill(waiting)
        if self.preemption_order:
            self._preempt([s for s in waiting if s.id in self.tried and s.id not in dict(self.decisions)])
        return self.decisions

    def _fill(self, waiting: list[Session]) -> bool:
        aged = [s for s in waiting if self.reserve_after and s.tries >= self.reserve_after]
        head = min(aged, key=lambda s: (-s.priority, s.order), default=None)
        if head is None:
            return self._in_order(waiting, strict=True)
        if self._in_order([s for s in waiting if s.priority > head.priority], strict=True):
            return True
        rest = [s for s in waiting if s.priority <= head.priority and s is not head]
        if not self._try(head):
            self._reserve(head)
            if not self.reservation and self.session_strategy == "fifo" and not self.max_tries:
                return True
        return self._in_order(rest, strict=not self.reservation)

    def _in_order(self, waiting: list[Session], *, strict: bool) -> bool:
        """Tries sessions; whether one of them holds up all others."""
        for priority in sorted({session.priority for session in waiting}, reverse=True):
            band = sorted((s for s in waiting if s.priority == priority), key=lambda s: s.order)
            if self.session_strategy == "fifo":
                late = [s for s in band if self.max_tries and s.tries >= self.max_tries]
                for session in [s for s in band if s not in late] + late:
                    if not self._try(session) and session not in late and strict:
                        return True
            elif self.session_strategy == "lifo":
                for session in reversed(band):
                    self._try(session)
            else:
                while band:
                    lowest = min({s.owner for s in band}, key=lambda o: (self._share(o), list(self.owners).index(o)))
                    session = next(s for s in band if s.owner == lowest)
                    band.remove(session)
                    self._try(session)
        return False

    def _agent(self, name: str) -> Agent:
        return next(agent for agent in self.agents if agent.id == name)

    def hold(self, agents: list[str], kernels: list[dict[str, int]], sign: int = 1) -> None:
        for name, kernel in zip(agents, kernels, strict=False):
            for slot in self.slots:
                self._agent(name).free[slot] -= sign * kernel[slot]

    def _is_free(self, session: Session) -> bool:
        return all(
            self._agent(name).schedulable
            and all(self._agent(name).free[slot] >= 0 for slot in self.slots if kernel[slot])
            for name, kernel in zip(session.nomination, session.kernels, strict=True)
        )

    def _if_gone(self, gone: list[Placed], session: Session, among: list[str] | None = None) -> list[str] | None:
        """Where a session would go if others were gone."""
        other = copy.deepcopy(self)
        for placed in gone:
            other.hold([name for name, _ in placed.kernels], [amounts for _, amounts in placed.kernels], -1)
        other.spare = {}
        for agent in other.agents:
            agent.schedulable = agent.schedulable and (among is None or agent.id in among)
        return other.place_alone(session)

    def place_alone(self, session: Session) -> list[str] | None:
        """Decides one session."""
        return self.decisions[-1][1] if self._has_agents(session) and self._try(session) else None

    def _reserve(self, head: Session) -> None:
        times = sorted({placed.end for placed in self.running if placed.end < math.inf})
        steps = [(time, [placed for placed in self.running if placed.end <= time]) for time in times]
        limited = [placed for placed in self.running if placed.end < math.inf]
        some_time = [placed for placed in self.running if placed.finishing and placed.end == math.inf]
        steps += [(math.inf, limited + some_time[: count + 1]) for count in range(len(some_time))]
        for time, gone in steps:
            agents = self._if_gone(gone, head)
            if agents is not None:
                self.reservation = (head.id, time, agents)
                for name in agents:
                    left = {
                        slot: max(0, self._agent(name).free[slot] + self._of(gone, name, slot)) for slot in self.slots
                    }
                    taken = [kernel for kernel, agent in zip(head.kernels, agents, strict=True) if agent == name]
                    self.spare[name] = {slot: left[slot] - sum(kernel[slot] for kernel in taken) for slot in self.slots}
                return

    def _of(self, gone: list[Placed], name: str, slot: str) -> int:
        return sum(amounts[slot] for placed in gone for agent, amounts in placed.kernels if agent == name)

    def _preempt(self, waiting: list[Session]) -> None:
        sign = 1 if self.preemption_order == "oldest" else -1
        left = [placed for placed in self.running if placed.preemptible]
        for session in sorted(waiting, key=lambda s: (-s.priority, s.order)):
            age = self.running.index
            lower = sorted(
                (p for p in left if p.priority < session.priority), key=lambda p: (p.priority, sign * age(p))
            )
            for count in range(len(lower) + 1):
                agents = self._if_gone(lower[:count], session)
                if agents is not None:
                    break
            else:
                continue
            if not count:
                continue
            victims = [p for p in lower[:count] if any(agent in agents for agent, _ in p.kernels)]
            for victim in reversed(victims.copy()):
                rest = [p for p in victims if p is not victim]
                if self._if_gone(rest, session, agents) is not None:
                    victims = rest
            placed = self._if_gone(victims, session, agents)
            if not victims or placed is None:
                continue
            self.preemptions.append((session.id, placed, [victim.id for victim in victims]))
            left = [p for p in left if p not in victims]
            for victim in victims:
                self.hold([name for name, _ in victim.kernels], [amounts for _, amounts in victim.kernels], -1)
            self.hold(placed, session.kernels)

    def _has_agents(self, session: Session) -> bool:
        agents = [agent for tier in self._tiers(session) for agent in tier]
        needs = session.needs or [frozenset()]
        if session.single_node or len(session.kernels) == 1:
            needs = [frozenset().union(*needs)]
        return all(any(needed <= agent.offers for agent in agents) for needed in needs)

    def _share(self, owner: str) -> Fraction:
        weight, held = self.owners[owner]
        totals = {slot: sum(agent.capacity[slot] for agent in self.agents) for slot in self.slots}
        return (
            max((Fraction(held[slot], totals[slot]) for slot in self.slots if totals[slot]), default=Fraction(0))
            / weight
        )

    def _try(self, session: Session) -> bool:
        self.tried.add(session.id)
        tiers = self._tiers(session)
        for count in range(1, len(tiers) + 1):
            agents = self._place(session, tiers[:count])
            if agents is not None:
                if session.endpoint:
                    counts = self.replicas[session.endpoint]
                    counts.update({agent: counts.get(agent, 0) + agents.count(agent) for agent in set(agents)})
                self._decide(session, agents)
                return True
        return False

    def _decide(self, session: Session, agents: list[str]) -> None:
        self.decisions.append((session.id, agents))
        held = self.owners[session.owner][1]
        for kernel in session.kernels:
            for slot in self.slots:
                held[slot] += kernel[slot]

    def _is_long(self, session: Session) -> bool:
        """Whether a session may not end before the reservation begins."""
        return self.reservation is not None and (self.reservation[1] == math.inf or session.limit > self.reservation[1])

    def _seen(self, agent: Agent, session: Session) -> dict[str, int]:
        """What is free on an agent for a session, which may have to leave what is reserved."""
        long = self._is_long(session)
        spare = self.spare.get(agent.id, agent.free) if long else agent.free
        return {slot: max(0, min(agent.free[slot], spare[slot])) for slot in self.slots}

    def _tiers(self, session: Session) -> list[list[Agent]]:
        fit = [a for a in self.agents if a.schedulable and session.architecture in ("", a.architecture)]
        pools = [[a for a in fit if a.id in session.designated]]
        if not (session.strict and session.designated):
            pools.append([a for a in fit if a.id not in session.designated])
        tiers = [[a for a in pool if (a.id in session.avoided) is last] for last in (False, True) for pool in pools]
        return [tier for tier in tiers if tier]

    def _place(self, session: Session, tiers: list[list[Agent]]) -> list[str] | None:
        before = [(agent, dict(agent.free)) for agent in self.agents]
        spare = copy.deepcopy(self.spare)
        round_robin_cursor = self.round_robin_cursor
        whole = {slot: sum(kernel[slot] for kernel in session.kernels) for slot in self.slots}
        needs = session.needs or [frozenset()] * len(session.kernels)
        agent = self._take(whole, tiers, session, frozenset().union(*needs))
        if agent:
            return [agent] * len(session.kernels)
        if not session.single_node and len(session.kernels) > 1:
            agents = []
            for kernel, needed in zip(session.kernels, needs, strict=True):
                agent = self._take(kernel, tiers, session, needed)
                if not agent:
                    break
                agents.append(agent)
            else:
                return agents
        for changed, free in before:
            changed.free = free
        self.spare = spare
        self.round_robin_cursor = round_robin_cursor
        return None

    def _take(self, request: dict[str, int], tiers: list[list[Agent]], session: Session, needs: frozenset[int]) -> str:
        for tier in tiers:
            fitting = [
                a
                for a in sorted(tier, key=lambda a: a.id)
                if needs <= a.offers and all(self._seen(a, session)[slot] >= request[slot] for slot in self.slots)
            ]
            if not fitting:
                continue
            if session.endpoint:
                counts = self.replicas[session.endpoint]
                best = (max if session.pack else min)(counts.get(a.id, 0) for a in fitting)
                fitting = [a for a in fitting if counts.get(a.id, 0) == best]
            if self.agent_strategy == "round-robin":
                chosen = next((a for a in fitting if a.id > self.round_robin_cursor), fitting[0])
                self.round_robin_cursor = chosen.id
            else:
                sign = -1 if self.agent_strategy == "dispersed" else 1
                order = self._slot_order()

                def key(agent: Agent) -> tuple[int, ...]:
                    unutilised = sum(not request[slot] and self._seen(agent, session)[slot] > 0 for slot in self.slots)
                    return (unutilised, *(sign * self._seen(agent, session)[slot] for slot in order))  # noqa: B023  # used at once

                chosen = min(fitting, key=key)
            for slot in self.slots:
                chosen.free[slot] -= request[slot]
                if chosen.id in self.spare and self._is_long(session):
                    self.spare[chosen.id][slot] -= request[slot]
            return chosen.id
        return ""

    def _slot_order(self) -> list[str]:
        first = [
            slot
            for entry in DEFAULT_PRIORITY
            for slot in sorted(self.slots)
            if slot == entry or slot.startswith(entry + ".")
        ]
        return first + sorted(set(self.slots) - set(first))
