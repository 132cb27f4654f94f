"""The life of a resource group whose sessions are preempted for those of higher priority.

Checks all that holds without preemption, and after every pass:

* a victim may be preempted, has a strictly lower priority than the winner, and is preempted once;
* the winner found no room, is within its quotas, fits where it is nominated once its victims are gone,
  and needs each of them;
* no other session is placed on held capacity, and a nomination is used as soon as its capacity is free;
* a session that would fit on one agent without those of lower priority gets a nomination.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.scheduling.columns import UNLIMITED, Integers, Running, Verdict
from retinue.manager.scheduling.strategies import (
    AGENT_STRATEGIES,
    EXTERNAL,
    FEWEST_SESSIONS,
    NEWEST,
    OLDEST,
    REQUEUE,
    SESSION_STRATEGIES,
    TERMINATE,
)
from tests.property.manager.scheduling.living_group import OWNERS, SLOTS, Group, Limit, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.manager.scheduling.scheduling_pass import Decisions


class PreemptingGroup(Group):
    """The same, and what is to make way does so some time later."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.order, self.mode = random.choice([NEWEST, OLDEST, FEWEST_SESSIONS]), random.choice([TERMINATE, REQUEUE])
        self.made_way = self.kept = 0
        strategies = [sorted(set(known) - {EXTERNAL}) for known in (SESSION_STRATEGIES, AGENT_STRATEGIES)]
        self.begin(
            [self.capacity_of_one() for _ in range(random.randint(1, 4))],
            [random.randint(1, 3) for _ in range(OWNERS)],
            *map(random.choice, strategies),
        )

    def options(self) -> dict[str, str]:
        return {"preemption": self.mode, "preemption-order": self.order}

    def capacity_of_one(self) -> tuple[int, ...]:
        return self.random.randint(3, 8), self.random.randint(3, 8), self.random.randint(0, 3)

    def step(self) -> None:
        """One thing happens."""
        happens: list[tuple[int, Callable[[], None]]] = [
            (30, self.ask),
            (20, self.release),
            (12, lambda: self.end(self.staying())),
            (30, lambda: self.end([session for session in self.sessions if not session.agents])),
            (3, lambda: self.drain_or_undrain(self.random.randrange(5))),
            (3, lambda: self.lose_or_bring_back(self.random.randrange(5))),
            (3, lambda: self.resize(self.random.randrange(5), self.capacity_of_one())),
            (4, self.limit),
            (4, self.quotas.clear),
            (4, self.forget_promise),
        ]
        self.random.choices([what for _, what in happens], [weight for weight, _ in happens])[0]()
        self.run()

    def ask(self) -> None:
        for _ in range(self.random.choice([1, 1, 2, 4])):
            self.ask_for_one()

    def ask_for_one(self) -> None:
        self.count += 1
        kernels: list[tuple[int, ...]] = [
            (self.random.randint(1, 3), self.random.randint(0, 3), self.random.randint(0, 1))
            for _ in range(self.random.choice([1, 1, 1, 2, 3]))
        ]
        owner, priority = self.random.randrange(OWNERS), self.random.choice([5, 5, 10, 20])
        single_node, preemptible = self.random.random() < 0.5, self.random.random() < 0.8
        self.sessions.append(Wanted(owner, self.count, kernels, single_node, [], priority, preemptible))

    def end(self, among: list[Wanted]) -> None:
        if among:
            self.sessions.remove(self.random.choice(among))

    def release(self) -> None:
        """A victim has ended, or waits again."""
        if leaving := [session for session in self.sessions if session.leaving]:
            session = self.random.choice(leaving)
            if self.mode == REQUEUE:
                session.agents, session.leaving = [], False
            else:
                self.sessions.remove(session)

    def limit(self) -> None:
        owner = self.random.choice([None, *range(OWNERS)])
        slots = tuple(self.random.choice([UNLIMITED, UNLIMITED, 6, 12]) for _ in SLOTS)
        self.set_quota(owner, slots, self.random.choice([UNLIMITED, 3, 5]))

    def forget_promise(self) -> None:
        """Its time has passed."""
        if held := [session for session in self.sessions if session.nomination]:
            self.random.choice(held).nomination = []

    def staying(self) -> list[Wanted]:
        """What is placed and does not have to go."""
        return [session for session in self.sessions if session.agents and not session.leaving]

    def running(self, present: Integers) -> Running:
        for session in self.sessions:
            # Who lost its agent waits, whatever was to become of it.
            session.leaving = session.leaving and bool(session.agents)
        self.before = self.staying()
        waiting = [session for session in self.sessions if not session.agents]
        self.nominations_before = {row for row, session in enumerate(waiting) if session.nomination}
        held = [kernel for session in self.before for kernel in session.kernels]
        return Running(
            ids=[str(session.order) for session in self.before],
            priorities=np.array([session.priority for session in self.before], np.int64),
            preemptible=np.array([session.preemptible for session in self.before], np.bool_),
            placed=np.array([session.placed for session in self.before], np.int64),
            ends=np.full(len(self.before), np.inf),
            offsets=np.cumsum([0, *(len(session.kernels) for session in self.before)]).astype(np.int64),
            agents=np.searchsorted(present, [agent for session in self.before for agent in session.agents]),
            amounts=np.array(held, np.int64).reshape(-1, len(SLOTS)),
        )

    def check_more(self, waiting: list[Wanted], decisions: Decisions, present: Integers) -> None:
        self.check_promises(waiting, decisions)
        free = self.capacity - self.used() - self.held_capacity()
        hopeful = [
            session
            for row, session in enumerate(waiting)
            if decisions.verdicts[row] == Verdict.NO_ROOM and not self.over_a_quota(session)
        ]
        if not decisions.preemptions:
            for session in hopeful:
                assert not self.fits_on_one_without_others(session, free)
        gone: set[int] = set()
        winners: list[Wanted] = []
        for preemption in decisions.preemptions:
            winner = waiting[preemption.winner]
            victims = [self.before[row] for row in preemption.victims]
            assert winner in hopeful
            assert not winner.nomination
            assert victims
            assert all(victim.preemptible and victim.priority < winner.priority for victim in victims)
            assert not gone & {id(victim) for victim in victims}, "no session is preempted twice"
            gone |= {id(victim) for victim in victims}
            agents = present[preemption.agents].tolist()
            assert not (self.lost | ~self.schedulable)[agents].any()
            assert not winner.single_node or len(set(agents)) == 1
            self.check_room(winner, agents, victims, free)
            for victim in victims:
                victim.leaving = True
                self.made_way += 1
                free += self.amounts_of(victim, victim.agents)
            winner.nomination = agents
            free -= self.amounts_of(winner, agents)
            winners.append(winner)
            assert not any(self.over_together(limit, winners) for limit in self.quotas.values())

    def check_promises(self, waiting: list[Wanted], decisions: Decisions) -> None:
        left = self.capacity - self.used() - self.held_capacity()
        for row, session in enumerate(waiting):
            asked = self.amounts_of(session, session.agents or session.nomination) > 0
            if decisions.verdicts[row] == Verdict.PLACED:
                assert (left[asked] >= 0).all(), "no other session is placed on what is held for others"
                self.kept += row in self.nominations_before
            elif session.nomination and decisions.verdicts[row] == Verdict.NOMINATED:
                there = (left + self.amounts_of(session, session.nomination))[asked]
                wanted = self.amounts_of(session, session.nomination)[asked]
                assert (there < wanted).any() or not self.schedulable[session.nomination].all()

    def check_room(self, winner: Wanted, agents: list[int], victims: list[Wanted], free: Integers) -> None:
        """The winner fits when its victims are gone and, as far as it is on one agent, not while one of them stays."""
        wanted = self.amounts_of(winner, agents)
        asked = wanted > 0
        freed = sum((self.amounts_of(victim, victim.agents) for victim in victims), np.zeros_like(free))
        assert (free + freed >= wanted)[asked].all()
        for victim in victims:
            assert set(victim.agents) & set(agents)
            if len(winner.kernels) == 1 or winner.single_node:
                rest = free + freed - self.amounts_of(victim, victim.agents)
                assert (rest < wanted)[asked].any(), "the winner needs each of its victims"

    def fits_on_one_without_others(self, session: Wanted, free: Integers) -> bool:
        """Whether one agent had room for all of it if all went who may have to for it."""
        most = free.copy()
        for other in self.before:
            if other.preemptible and other.priority < session.priority:
                most += self.amounts_of(other, other.agents)
        whole = np.array(session.kernels, np.int64).sum(axis=0)
        return bool((most >= whole)[self.schedulable & ~self.lost].all(axis=1).any())

    def over_a_quota(self, session: Wanted) -> bool:
        return any(
            self.exceeds(limit, session) for limit in self.quotas.values() if limit.owner in (None, session.owner)
        )

    def over_together(self, limit: Limit, winners: list[Wanted]) -> bool:
        """Whether the last of the winners goes beyond a quota, beside the others and all that is placed."""
        counted = [winner for winner in winners if limit.owner in (None, winner.owner)]
        if winners[-1] not in counted:
            return False
        held, placed = self.use(limit)
        asked = sum((np.array(winner.kernels, np.int64).sum(axis=0) for winner in counted), np.zeros_like(held))
        own, most = np.array(winners[-1].kernels, np.int64).sum(axis=0), np.array(limit.slots, np.int64)
        over = (most != UNLIMITED) & (own > 0) & (held + asked > most)
        return bool(over.any()) or (limit.sessions != UNLIMITED and placed + len(counted) > limit.sessions)

    def amounts_of(self, session: Wanted, agents: list[int]) -> Integers:
        """What a session holds, or would, of each agent."""
        amounts_there = np.zeros_like(self.capacity)
        for agent, kernel in zip(agents, session.kernels, strict=False):
            amounts_there[agent] += np.array(kernel)
        return amounts_there


def test_the_life_of_groups() -> None:
    made_way = kept = 0
    for seed in range(40):
        group = PreemptingGroup(Random(seed))
        for step in range(40):
            try:
                group.step()
            except AssertionError as error:
                error.add_note(f"seed {seed}, step {step}")
                raise
        made_way += group.made_way
        kept += group.kept
    # The walks are such that there is something to see.
    assert made_way >= 50
    assert kept >= 20
