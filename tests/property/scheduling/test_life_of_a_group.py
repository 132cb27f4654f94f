"""A resource group lives on, pass after pass, with everything that can happen to it; what must always hold is checked each time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from manager.scheduling.columns import UNPLACED, Agents, Integers, Owners, Policy, Queue, Tier, Verdict
from manager.scheduling.scheduling_pass import Decisions, run_pass
from manager.scheduling.strategies import AGENT_STRATEGIES, EXTERNAL, SESSION_STRATEGIES

SLOTS = ("cpu", "mem", "cuda.device")
OWNERS = 3
amounts = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2))


@dataclass
class Wanted:
    """A session: waiting while `agents` is empty."""

    owner: int
    order: int
    kernels: list[tuple[int, ...]]
    single_node: bool
    agents: list[int]


class Group(RuleBasedStateMachine):
    """Submits, finishes, cancels; agents lost, back, drained, resized; a pass after each."""

    @initialize(
        capacities=st.lists(amounts, min_size=1, max_size=5),
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
        self.policy = Policy(session_strategy, agent_strategy)
        self.sessions: list[Wanted] = []
        self.count = 0
        self.rotation = ""
        self.run()

    @rule(
        owner=st.integers(0, OWNERS - 1), kernels=st.lists(amounts, min_size=1, max_size=4), single_node=st.booleans()
    )
    def submit(self, owner: int, kernels: list[tuple[int, ...]], single_node: bool) -> None:
        self.count += 1
        self.sessions.append(Wanted(owner, self.count, kernels, single_node, []))
        self.run()

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def finish_or_cancel(self, data: st.DataObject) -> None:
        self.sessions.remove(data.draw(st.sampled_from(self.sessions)))
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
        self.run()

    @rule(agent=st.integers(0, 4), capacity=amounts)
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

    def held(self) -> Integers:
        """What each owner holds."""
        held = np.zeros((OWNERS, len(SLOTS)), np.int64)
        for session in self.sessions:
            if session.agents:
                held[session.owner] += np.array(session.kernels).sum(axis=0)
        return held

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
            priorities=np.full(len(waiting), 10, np.int64),
            orders=np.array([session.order for session in waiting], np.int64),
            single_node=np.array([session.single_node for session in waiting], np.bool_),
            offsets=np.cumsum([0, *(len(session.kernels) for session in waiting)]).astype(np.int64),
            requests=np.array([k for session in waiting for k in session.kernels], np.int64).reshape(-1, len(SLOTS)),
            tries=np.zeros(len(waiting), np.int64),
        )
        owners = Owners([f"o{owner}" for owner in range(OWNERS)], self.weights, self.held())
        return waiting, run_pass(agents, owners, queue, self.policy, self.rotation), queue, present

    def run(self) -> None:
        """A pass, committed, with everything that its answer claims."""
        before = self.used()
        waiting, decisions, queue, present = self.decide()
        self.rotation = decisions.rotation
        for row, session in enumerate(waiting):
            chosen = decisions.kernel_agents[queue.offsets[row] : queue.offsets[row + 1]]
            assert (chosen == UNPLACED).all() or (chosen != UNPLACED).all(), "a gang is placed whole or not at all"
            explanation = decisions.explain(row)
            if decisions.verdicts[row] == Verdict.PLACED:
                session.agents = present[chosen].tolist()
                assert explanation is None
                assert not session.single_node or len(set(session.agents)) == 1
            else:
                assert explanation is not None, "what waits has a reason"
                assert (chosen == UNPLACED).all()
                self.check_reason(session, explanation.tier, Verdict(decisions.verdicts[row]))
        assert (decisions.held == self.held()).all(), "shares are what the claims say"
        touched = (self.used() != before).any(axis=1)
        assert (self.used()[touched] <= self.capacity[touched]).all()
        assert not (touched & (self.lost | ~self.schedulable)).any()

    def check_reason(self, session: Wanted, tier: Tier, verdict: Verdict) -> None:
        """A reason is true: what never fits does not fit on empty agents, and with no agent there is none."""
        takers = self.schedulable & ~self.lost
        if tier is Tier.SYSTEM:
            assert not takers.any()
        if tier is Tier.POLICY:
            assert verdict == Verdict.BEHIND
        if tier is Tier.CONFIGURATION:
            whole = np.array(session.kernels).sum(axis=0)
            assert not (self.capacity[~self.lost] >= whole).all(axis=1).any()


TestGroup = Group.TestCase
TestGroup.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    stateful_step_count=25,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
