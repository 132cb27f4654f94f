"""A resource group that lives on, pass after pass, with everything that its answers claim."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from retinue.manager.domain.scheduling.policy import Policy, Tier
from retinue.manager.scheduling.columns import (
    UNLIMITED,
    UNPLACED,
    Agents,
    Integers,
    Owners,
    Queue,
    Quotas,
    Running,
    Verdict,
)
from retinue.manager.scheduling.scheduling_pass import Decisions, run_pass
from retinue.manager.scheduling.strategies import AGENT_STRATEGIES, EXTERNAL, SESSION_STRATEGIES

SLOTS = ("cpu", "mem", "cuda.device")
OWNERS = 3
# A kernel's, and an agent's: some kernels fit nowhere, and some agents take several.
amounts = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 1))
capacities = st.tuples(st.integers(0, 8), st.integers(1, 8), st.integers(0, 3))


@dataclass
class Wanted:
    """A session: waiting while `agents` is empty."""

    owner: int
    order: int
    kernels: list[tuple[int, ...]]
    single_node: bool
    agents: list[int]
    priority: int = 10
    # May make way; has to, and holds what it holds until it has ended; when it was placed;
    # the room that is kept for it.
    preemptible: bool = False
    leaving: bool = False
    placed: int = 0
    nomination: list[int] = field(default_factory=list)


@dataclass
class Limit:
    """A quota of one owner, or of every owner: limits of each slot (UNLIMITED for none) and of placed sessions."""

    owner: int | None
    slots: tuple[int, ...]
    sessions: int


class Group(RuleBasedStateMachine):
    """Submits, finishes, cancels; agents lost, back, drained, resized; a pass after each."""

    @initialize(
        capacities=st.lists(capacities, min_size=1, max_size=5),
        weights=st.lists(st.integers(1, 3), min_size=OWNERS, max_size=OWNERS),
        session_strategy=st.sampled_from(sorted(set(SESSION_STRATEGIES) - {EXTERNAL})),
        agent_strategy=st.sampled_from(sorted(set(AGENT_STRATEGIES) - {EXTERNAL})),
    )
    def begin(
        self, capacities: list[tuple[int, ...]], weights: list[int], session_strategy: str, agent_strategy: str
    ) -> None:
        self.capacity = np.array(capacities, np.int64)
        self.schedulable = np.ones(len(capacities), np.bool_)
        self.lost = np.zeros(len(capacities), np.bool_)
        self.weights = np.array(weights, np.int64)
        self.policy = Policy(session_strategy, agent_strategy, self.options())
        self.sessions: list[Wanted] = []
        self.count = 0
        self.round_robin_cursor = ""
        self.quotas: dict[int | None, Limit] = {}
        self.run()

    def options(self) -> dict[str, str]:
        """Those of the group."""
        return {}

    def running(self, present: Integers) -> Running | None:
        """What is placed, as a pass reads it, on the agents `present`."""
        del present
        return None

    def check_more(self, waiting: list[Wanted], decisions: Decisions, present: Integers) -> None:
        """What else must hold after a pass."""

    @rule(
        owner=st.integers(0, OWNERS - 1),
        kernels=st.lists(amounts, min_size=1, max_size=4),
        single_node=st.booleans(),
        priority=st.sampled_from([10, 10, 10, 20]),
    )
    def submit(self, owner: int, kernels: list[tuple[int, ...]], single_node: bool, priority: int) -> None:
        self.count += 1
        self.sessions.append(Wanted(owner, self.count, kernels, single_node, [], priority))
        self.run()

    @precondition(lambda self: any(session.agents for session in self.sessions))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.sessions.remove(data.draw(st.sampled_from([session for session in self.sessions if session.agents])))
        self.run()

    @precondition(lambda self: any(not session.agents for session in self.sessions))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.sessions.remove(data.draw(st.sampled_from([session for session in self.sessions if not session.agents])))
        self.run()

    @rule(
        owner=st.none() | st.integers(0, OWNERS - 1),
        slots=st.tuples(*[st.integers(0, 12) | st.just(UNLIMITED)] * len(SLOTS)),
        sessions=st.integers(0, 4) | st.just(UNLIMITED),
    )
    def set_quota(self, owner: int | None, slots: tuple[int, ...], sessions: int) -> None:
        """A quota may fall below what is in use; nothing is taken away, and nothing is added."""
        self.quotas[owner] = Limit(owner, slots, sessions)
        self.run()

    @precondition(lambda self: self.quotas)
    @rule(data=st.data())
    def lift_quota(self, data: st.DataObject) -> None:
        del self.quotas[data.draw(st.sampled_from(sorted(self.quotas, key=str)))]
        self.run()

    @rule(agent=st.integers(0, 4))
    def drain_or_undrain(self, agent: int) -> None:
        agent %= len(self.capacity)
        self.schedulable[agent] = not self.schedulable[agent]
        self.run()

    @rule(agent=st.integers(0, 4))
    def lose_or_bring_back(self, agent: int) -> None:
        """A lost agent's sessions wait again."""
        agent %= len(self.capacity)
        self.lost[agent] = not self.lost[agent]
        for session in self.sessions:
            if self.lost[agent] and agent in session.agents:
                session.agents = []
            if self.lost[agent] and agent in session.nomination:
                session.nomination = []
        self.run()

    @rule(agent=st.integers(0, 4), capacity=capacities)
    def resize(self, agent: int, capacity: tuple[int, ...]) -> None:
        """Capacity may fall below what is in use; nothing is taken away, and nothing is added."""
        self.capacity[agent % len(self.capacity)] = capacity
        self.run()

    def used(self) -> Integers:
        """What sessions hold of each agent."""
        used = np.zeros_like(self.capacity)
        for session in self.sessions:
            for agent, kernel in zip(session.agents, session.kernels, strict=False):
                used[agent] += np.array(kernel)
        return used

    def held_capacity(self) -> Integers:
        """What is kept of each agent for sessions that wait."""
        held = np.zeros_like(self.capacity)
        for session in self.sessions:
            for agent, kernel in zip(session.nomination, session.kernels, strict=False):
                held[agent] += np.array(kernel)
        return held

    def held(self) -> Integers:
        """What each owner holds."""
        held = np.zeros((OWNERS, len(SLOTS)), np.int64)
        for session in self.sessions:
            if session.agents:
                held[session.owner] += np.array(session.kernels).sum(axis=0)
        return held

    def use(self, limit: Limit) -> tuple[Integers, int]:
        """What counts against a quota: amounts by slot, and placed sessions."""
        placed = [s for s in self.sessions if s.agents and limit.owner in (None, s.owner)]
        kernels = [kernel for session in placed for kernel in session.kernels]
        return np.array(kernels, np.int64).reshape(-1, len(SLOTS)).sum(axis=0), len(placed)

    def limits(self, waiting: list[Wanted]) -> Quotas | None:
        """The quotas as a pass reads them."""
        limits = list(self.quotas.values())
        if not limits:
            return None
        return Quotas(
            names=[f"quota {row}" for row in range(len(limits))],
            slots=SLOTS,
            limits=np.array([limit.slots for limit in limits], np.int64),
            held=np.array([self.use(limit)[0] for limit in limits], np.int64),
            session_limits=np.array([limit.sessions for limit in limits], np.int64),
            sessions=np.array([self.use(limit)[1] for limit in limits], np.int64),
            of_sessions=[
                tuple(row for row, limit in enumerate(limits) if limit.owner in (None, session.owner))
                for session in waiting
            ],
        )

    def exceeds(self, limit: Limit, session: Wanted) -> bool:
        """Whether a session would go beyond a quota; a slot that it does not ask for is no matter."""
        held, placed = self.use(limit)
        asked = np.array(session.kernels, np.int64).sum(axis=0)
        most = np.array(limit.slots, np.int64)
        over = (most != UNLIMITED) & (asked > 0) & (held + asked > most)
        return bool(over.any()) or (limit.sessions != UNLIMITED and placed >= limit.sessions)

    def decide(self) -> tuple[list[Wanted], Decisions, Queue, Integers]:
        """One pass over what waits."""
        present = np.flatnonzero(~self.lost)
        agents = Agents(
            SLOTS,
            [f"a{agent}" for agent in present],
            self.capacity[present],
            self.used()[present],
            self.schedulable[present],
            ["x86_64"] * len(present),
            np.zeros(len(present), np.int64),
        )
        waiting = [session for session in self.sessions if not session.agents]
        queue = Queue(
            ids=[str(session.order) for session in waiting],
            owners=np.array([session.owner for session in waiting], np.int64),
            priorities=np.array([session.priority for session in waiting], np.int64),
            orders=np.array([session.order for session in waiting], np.int64),
            single_node=np.array([session.single_node for session in waiting], np.bool_),
            offsets=np.cumsum([0, *(len(session.kernels) for session in waiting)]).astype(np.int64),
            requests=np.array([k for session in waiting for k in session.kernels], np.int64).reshape(-1, len(SLOTS)),
            tries=np.zeros(len(waiting), np.int64),
            nominated={
                row: np.searchsorted(present, session.nomination).tolist()
                for row, session in enumerate(waiting)
                if session.nomination
            },
            quotas=self.limits(waiting),
        )
        owners = Owners([f"o{owner}" for owner in range(OWNERS)], self.weights, self.held())
        decisions = run_pass(agents, owners, queue, self.policy, self.round_robin_cursor, running=self.running(present))
        return waiting, decisions, queue, present

    def run(self) -> None:
        """A pass, committed, with everything that its answer claims."""
        before, placed_before = self.used(), {limit: self.use(self.quotas[limit]) for limit in self.quotas}
        waiting, decisions, queue, present = self.decide()
        self.round_robin_cursor = decisions.round_robin_cursor
        reasons: list[tuple[Wanted, Tier, Verdict]] = []
        for row, session in enumerate(waiting):
            chosen = decisions.kernel_agents[queue.offsets[row] : queue.offsets[row + 1]]
            assert (chosen == UNPLACED).all() or (chosen != UNPLACED).all(), "a gang is placed whole or not at all"
            explanation = decisions.explain(row)
            if decisions.verdicts[row] == Verdict.PLACED:
                session.agents, session.nomination = present[chosen].tolist(), []
                self.count += 1
                session.placed = self.count
                assert explanation is None
                assert not session.single_node or len(set(session.agents)) == 1
            else:
                assert explanation is not None, "what waits has a reason"
                assert (chosen == UNPLACED).all()
                reasons.append((session, explanation.tier, Verdict(decisions.verdicts[row])))
        for session, tier, verdict in reasons:
            self.check_reason(session, tier, verdict)
        assert (decisions.held == self.held()).all(), "shares are what the claims say"
        touched = (self.used() != before).any(axis=1)
        # A slot of which there is less now than is in use is no matter to who does not ask for it.
        assert (self.used() <= self.capacity)[self.used() > before].all()
        assert not (touched & (self.lost | ~self.schedulable)).any()
        for key, (held, number) in placed_before.items():
            now, placed = self.use(self.quotas[key])
            most = np.array(self.quotas[key].slots, np.int64)
            grown = (now > held) & (most != UNLIMITED)
            assert (now[grown] <= most[grown]).all(), "no pass goes beyond a quota"
            assert placed == number or self.quotas[key].sessions in (UNLIMITED, *range(placed, 1000))
        self.check_more(waiting, decisions, present)

    def check_reason(self, session: Wanted, tier: Tier, verdict: Verdict) -> None:
        """A reason is true: what never fits does not fit on empty agents, what finds no room finds none now,
        and so on.
        """
        takers = self.schedulable & ~self.lost
        whole = np.array(session.kernels, np.int64).sum(axis=0)
        limits = [limit for limit in self.quotas.values() if limit.owner in (None, session.owner)]
        over = any(self.exceeds(limit, session) for limit in limits)
        if verdict == Verdict.OVER_QUOTA:
            # What counts against a quota only grows in a pass, so it is exceeded at its end too.
            assert over
            # What could never fit is said first, whatever else stands in its way.
            assert tier in {Tier.POLICY, Tier.CONFIGURATION}
        elif tier is Tier.POLICY:
            assert verdict == Verdict.BEHIND
        if verdict == Verdict.BEHIND:
            assert self.policy.session_strategy == "fifo"
        if verdict == Verdict.NO_AGENT:
            assert not takers.any()
        if tier is Tier.SYSTEM:
            assert not takers.any()
        if verdict == Verdict.NO_ROOM:
            # Free amounts only shrink in a pass: what found no room has none at its end.
            free = np.clip(self.capacity - self.used() - self.held_capacity(), 0, None)[takers]
            assert not (free >= whole).all(axis=1).any()
            if len(session.kernels) > 1 and not session.single_node:
                assert not self.fits_spread_with_plenty(session, free)
        if tier is Tier.CONFIGURATION:
            assert not (self.capacity[~self.lost] >= whole).all(axis=1).any()

    @staticmethod
    def fits_spread_with_plenty(session: Wanted, free: Integers) -> bool:
        """Whether each kernel would find an agent of its own that has room for the largest of each amount:
        then any order finds room.
        """
        largest = np.array(session.kernels, np.int64).max(axis=0)
        return int((free >= largest).all(axis=1).sum()) >= len(session.kernels)
