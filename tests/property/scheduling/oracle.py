"""The scheduler again, as short and plain as it can be: rationals, full scans, no memory. What the fast pass must equal."""

from __future__ import annotations

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
    rotation: str = ""
    # Live kernels by endpoint and agent.
    replicas: dict[str, dict[str, int]] = field(default_factory=dict)
    decisions: list[tuple[str, list[str]]] = field(default_factory=list)

    def run(self) -> list[tuple[str, list[str]]]:
        """Decides; (session, agents of its kernels) in order."""
        waiting = [session for session in self.sessions if not session.held_back and self._has_agents(session)]
        for priority in sorted({session.priority for session in waiting}, reverse=True):
            band = sorted((s for s in waiting if s.priority == priority), key=lambda s: s.order)
            if self.session_strategy == "fifo":
                late = [s for s in band if self.max_tries and s.tries >= self.max_tries]
                for session in [s for s in band if s not in late] + late:
                    if not self._try(session) and session not in late:
                        return self.decisions
            elif self.session_strategy == "lifo":
                for session in reversed(band):
                    self._try(session)
            else:
                while band:
                    lowest = min({s.owner for s in band}, key=lambda o: (self._share(o), list(self.owners).index(o)))
                    session = next(s for s in band if s.owner == lowest)
                    band.remove(session)
                    self._try(session)
        return self.decisions

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
        tiers = self._tiers(session)
        for count in range(1, len(tiers) + 1):
            agents = self._place(session, tiers[:count])
            if agents is not None:
                if session.endpoint:
                    counts = self.replicas[session.endpoint]
                    counts.update({agent: counts.get(agent, 0) + agents.count(agent) for agent in set(agents)})
                self.decisions.append((session.id, agents))
                held = self.owners[session.owner][1]
                for kernel in session.kernels:
                    for slot in self.slots:
                        held[slot] += kernel[slot]
                return True
        return False

    def _tiers(self, session: Session) -> list[list[Agent]]:
        fit = [a for a in self.agents if a.schedulable and session.architecture in ("", a.architecture)]
        tiers = [[a for a in fit if a.id in session.designated]]
        if not (session.strict and session.designated):
            rest = [a for a in fit if a.id not in session.designated]
            tiers += [[a for a in rest if a.id not in session.avoided], [a for a in rest if a.id in session.avoided]]
        return [tier for tier in tiers if tier]

    def _place(self, session: Session, tiers: list[list[Agent]]) -> list[str] | None:
        before = [(agent, dict(agent.free)) for agent in self.agents]
        rotation = self.rotation
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
        self.rotation = rotation
        return None

    def _take(self, request: dict[str, int], tiers: list[list[Agent]], session: Session, needs: frozenset[int]) -> str:
        for tier in tiers:
            fitting = [
                a
                for a in sorted(tier, key=lambda a: a.id)
                if needs <= a.offers and all(a.free[slot] >= request[slot] for slot in self.slots)
            ]
            if not fitting:
                continue
            if session.endpoint:
                counts = self.replicas[session.endpoint]
                best = (max if session.pack else min)(counts.get(a.id, 0) for a in fitting)
                fitting = [a for a in fitting if counts.get(a.id, 0) == best]
            if self.agent_strategy == "round-robin":
                chosen = next((a for a in fitting if a.id > self.rotation), fitting[0])
                self.rotation = chosen.id
            else:
                sign = -1 if self.agent_strategy == "dispersed" else 1
                order = self._slot_order()

                def key(agent: Agent) -> tuple[int, ...]:
                    unutilised = sum(not request[slot] and agent.free[slot] > 0 for slot in self.slots)
                    return (unutilised, *(sign * agent.free[slot] for slot in order))  # noqa: B023  # used at once

                chosen = min(fitting, key=key)
            for slot in self.slots:
                chosen.free[slot] -= request[slot]
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
