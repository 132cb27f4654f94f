"""A small scheduling problem written down with plain names and decimal amounts, and what a pass makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from retinue.manager.domain.scheduling.policy import Policy, Tier
from retinue.manager.scheduling.columns import (
    UNLIMITED,
    UNPLACED,
    AgentPreferences,
    Agents,
    Explanation,
    Integers,
    Owners,
    Queue,
    Quotas,
    Running,
)
from retinue.manager.scheduling.scheduling_pass import Decisions, run_pass

Amounts = Mapping[str, str | int | float | Fraction]
FAMILIES = {4: 1, 6: 2}
WAITS = Explanation(Tier.POLICY, "HELD_BACK", "waits for a reason of its own")


def exact(amount: str | float | Fraction) -> Fraction:
    """The number that a text or a decimal stands for."""
    return Fraction(str(amount))


@dataclass
class Outcome:
    """What a pass decided, by name."""

    order: list[str]
    agents: dict[str, list[str]]
    decisions: Decisions
    rows: dict[str, int]
    # How many units of the pass one unit of the problem is.
    scale: int


@dataclass
class Scene:
    """A problem under construction. Rows of owners, in the order of `add_owner`, break ties."""

    _agents: list[tuple[str, Amounts, Amounts, bool, str, int, int]] = field(default_factory=list)
    _owners: dict[str, tuple[int, Amounts]] = field(default_factory=dict)
    _sessions: list[tuple[str, str, Sequence[Amounts], int, bool, int, str, bool, AgentPreferences | None]] = field(
        default_factory=list
    )
    _replicas: list[dict[int, int]] = field(default_factory=list)
    _endpoints: dict[str, int] = field(default_factory=dict)
    _quotas: list[tuple[Amounts, Amounts, int | None, int, str | None]] = field(default_factory=list)
    _running: list[tuple[str, int, int, Mapping[str, Amounts]]] = field(default_factory=list)

    def add_agent(
        self,
        name: str,
        capacity: Amounts,
        used: Amounts | None = None,
        *,
        schedulable: bool = True,
        architecture: str = "x86_64",
        kernels: int = 0,
        family: int = 0,
    ) -> None:
        """An agent; only agents of one family, 4 or 6, reach each other, or all where none has one."""
        self._agents.append((name, capacity, used or {}, schedulable, architecture, kernels, family))

    def add_owner(self, name: str, weight: int = 1, held: Amounts | None = None) -> None:
        """An owner."""
        self._owners[name] = (weight, held or {})

    def add_session(  # all but three by name
        self,
        name: str,
        owner: str,
        kernels: Sequence[Amounts],
        *,
        priority: int = 10,
        single_node: bool = False,
        tries: int = 0,
        architecture: str = "",
        held_back: bool = False,
        designated: Sequence[str] = (),
        strict: bool = False,
        avoided: Sequence[str] = (),
        beside: Mapping[str, int] | None = None,
        pack: bool = False,
        endpoint: str = "",
    ) -> None:
        """A session; they arrive in the order in which they are added.
        An owner not added before has weight 1 and holds nothing.

        `beside` are kernels of its endpoint by agent, from which it keeps away or, with `pack`, to which it keeps
        close. Sessions with the same name for `endpoint` count each other too.
        An agent that is not among those of the scene is gone.
        """
        if owner not in self._owners:
            self.add_owner(owner)
        wishes = None
        if designated or avoided or beside is not None:
            row = {agent[0]: number for number, agent in enumerate(self._agents)}
            number = None
            if beside is not None:
                number = self._endpoints.setdefault(endpoint or name, len(self._replicas))
                if number == len(self._replicas):
                    self._replicas.append({row[agent]: kernels for agent, kernels in beside.items() if agent in row})
            wanted, unwanted = ([row[agent] for agent in agents if agent in row] for agents in (designated, avoided))
            wishes = AgentPreferences(wanted, strict, unwanted, number, pack)
        self._sessions.append((name, owner, kernels, priority, single_node, tries, architecture, held_back, wishes))

    def add_quota(
        self,
        limits: Amounts,
        held: Amounts,
        *,
        most_sessions: int | None = None,
        sessions: int = 0,
        owner: str | None = None,
    ) -> None:
        """A quota of one owner, or of all together; a slot that `limits` does not name has no limit."""
        self._quotas.append((limits, held, most_sessions, sessions, owner))

    def add_running(self, name: str, priority: int, placed: int, holds: Mapping[str, Amounts]) -> None:
        """A placed session that may be preempted; what it holds, by agent, is among what is used there.
        A larger `placed` is newer.
        """
        self._running.append((name, priority, placed, holds))

    def columns(self) -> tuple[Agents, Owners, Queue, int]:
        """The problem as a pass reads it, and its scale."""
        requests = [kernel for session in self._sessions for kernel in session[2]]
        helds = [held for _, held in self._owners.values()]
        mappings = [mapping for agent in self._agents for mapping in agent[1:3]] + requests + helds
        mappings += [mapping for limit in self._quotas for mapping in limit[:2]]
        mappings += [amounts for session in self._running for amounts in session[3].values()]
        slots = sorted({slot for mapping in mappings for slot in mapping})
        scale = math.lcm(*(exact(amount).denominator for mapping in mappings for amount in mapping.values()))

        def matrix(rows: Sequence[Amounts]) -> Integers:
            values = [[int(exact(row.get(slot, 0)) * scale) for slot in slots] for row in rows]
            return np.array(values, np.int64).reshape(len(rows), len(slots))

        agents = Agents(
            tuple(slots),
            [agent[0] for agent in self._agents],
            matrix([agent[1] for agent in self._agents]),
            matrix([agent[2] for agent in self._agents]),
            np.array([agent[3] for agent in self._agents], np.bool_),
            [agent[4] for agent in self._agents],
            np.array([agent[5] for agent in self._agents], np.int64),
            offers=np.array([FAMILIES.get(agent[6], 0) for agent in self._agents], np.int64),
            families={bit: f"IPv{family}" for family, bit in FAMILIES.items()}
            if any(a[6] for a in self._agents)
            else {},
        )
        names = list(self._owners)
        owners = Owners(names, np.array([weight for weight, _ in self._owners.values()], np.int64), matrix(helds))
        sessions = self._sessions
        queue = Queue(
            ids=[session[0] for session in sessions],
            owners=np.array([names.index(session[1]) for session in sessions], np.int64),
            priorities=np.array([session[3] for session in sessions], np.int64),
            orders=np.arange(len(sessions), dtype=np.int64),
            single_node=np.array([session[4] for session in sessions], np.bool_),
            offsets=np.cumsum([0, *(len(session[2]) for session in sessions)]).astype(np.int64),
            requests=matrix(requests),
            tries=np.array([session[5] for session in sessions], np.int64),
            held_back={row: WAITS for row, session in enumerate(sessions) if session[7]},
            architectures={row: session[6] for row, session in enumerate(sessions) if session[6]},
            wishes={row: session[8] for row, session in enumerate(sessions) if session[8] is not None},
            replicas=self._replicas,
            quotas=self._limits(slots, matrix, scale) if self._quotas else None,
        )
        return agents, owners, queue, scale

    def _placed(self, agents: Agents, scale: int) -> Running:
        row = {name: number for number, name in enumerate(agents.ids)}
        holdings = [(row[agent], amounts) for session in self._running for agent, amounts in session[3].items()]
        values = [[int(exact(amounts.get(slot, 0)) * scale) for slot in agents.slots] for _, amounts in holdings]
        return Running(
            ids=[session[0] for session in self._running],
            priorities=np.array([session[1] for session in self._running], np.int64),
            preemptible=np.ones(len(self._running), np.bool_),
            placed=np.array([session[2] for session in self._running], np.int64),
            ends=np.full(len(self._running), np.inf),
            offsets=np.cumsum([0, *(len(session[3]) for session in self._running)]).astype(np.int64),
            agents=np.array([agent for agent, _ in holdings], np.int64),
            amounts=np.array(values, np.int64).reshape(len(holdings), len(agents.slots)),
        )

    def _limits(self, slots: Sequence[str], matrix: Callable[[Sequence[Amounts]], Integers], scale: int) -> Quotas:
        return Quotas(
            names=[f"quota {number}" for number in range(len(self._quotas))],
            slots=slots,
            limits=np.array(
                [
                    [int(exact(quota[0][slot]) * scale) if slot in quota[0] else UNLIMITED for slot in slots]
                    for quota in self._quotas
                ],
                np.int64,
            ),
            held=matrix([quota[1] for quota in self._quotas]),
            session_limits=np.array([UNLIMITED if quota[2] is None else quota[2] for quota in self._quotas], np.int64),
            sessions=np.array([quota[3] for quota in self._quotas], np.int64),
            of_sessions=[
                tuple(row for row, quota in enumerate(self._quotas) if quota[4] in (None, session[1]))
                for session in self._sessions
            ],
        )

    def run(self, policy: Policy, round_robin_cursor: str = "") -> Outcome:
        """Runs one pass."""
        agents, owners, queue, scale = self.columns()
        running = self._placed(agents, scale) if self._running else None
        decisions = run_pass(agents, owners, queue, policy, round_robin_cursor, running=running)
        rows = {name: row for row, name in enumerate(queue.ids)}
        placed = {}
        for name, row in rows.items():
            chosen = decisions.kernel_agents[queue.offsets[row] : queue.offsets[row + 1]].tolist()
            if UNPLACED not in chosen and row in decisions.sessions:
                placed[name] = [agents.ids[agent] for agent in chosen]
        return Outcome([queue.ids[row] for row in decisions.sessions], placed, decisions, rows, scale)
