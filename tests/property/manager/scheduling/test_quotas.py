"""Random quotas: the fast pass decides as the plain one does, and goes beyond none."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from retinue.manager.domain.scheduling.policy import Tier
from retinue.manager.scheduling.columns import UNLIMITED, Quotas, Verdict
from retinue.manager.scheduling.quotas import QUOTA
from retinue.manager.scheduling.scheduling_pass import run_pass
from tests.property.manager.scheduling.instances import columns_of, random_cluster
from tests.property.manager.scheduling.oracle import Cluster, Session


@dataclass
class Quota:
    """Limits of some owners together, by slot, and of the number of their sessions."""

    owners: frozenset[str]
    limits: dict[str, int]
    held: dict[str, int]
    most: int | None
    sessions: int

    def over(self, session: Session) -> bool:
        if self.most is not None and self.sessions >= self.most:
            return True
        asked = {slot: sum(kernel[slot] for kernel in session.kernels) for slot in self.limits}
        return any(asked[slot] and self.held[slot] + asked[slot] > limit for slot, limit in self.limits.items())


@dataclass
class LimitedCluster(Cluster):
    """The plain scheduler with quotas: a session over one is passed over."""

    quotas: list[Quota] = field(default_factory=list)

    def _try(self, session: Session) -> bool:
        mine = [quota for quota in self.quotas if session.owner in quota.owners]
        if any(quota.over(session) for quota in mine):
            # As good as placed: it blocks no other session.
            return True
        if not super()._try(session):
            return False
        for quota in mine:
            quota.sessions += 1
            for slot in quota.limits:
                quota.held[slot] += sum(kernel[slot] for kernel in session.kernels)
        return True


def random_quotas(choice: random.Random, cluster: Cluster) -> list[Quota]:
    top = max((agent.capacity[slot] for agent in cluster.agents for slot in cluster.slots), default=1) or 1
    owners = list(cluster.owners)
    groups = [frozenset([owner]) for owner in owners if choice.random() < 0.5]
    groups += [frozenset(owners), frozenset(choice.sample(owners, choice.randint(1, len(owners))))]
    quotas = []
    for group in groups:
        limits = {slot: choice.randint(0, 2 * top) for slot in cluster.slots if choice.random() < 0.4}
        held = {slot: choice.randint(0, limits[slot] + choice.choice([0, 0, 3])) for slot in limits}
        quotas.append(Quota(group, limits, held, choice.choice([None, None, 0, 1, 3, 6]), choice.randint(0, 2)))
    return quotas


def columns_of_quotas(cluster: Cluster, quotas: list[Quota]) -> Quotas:
    return Quotas(
        names=[f"q{number}" for number in range(len(quotas))],
        slots=cluster.slots,
        limits=np.array([[quota.limits.get(slot, UNLIMITED) for slot in cluster.slots] for quota in quotas], np.int64),
        held=np.array([[quota.held.get(slot, 0) for slot in cluster.slots] for quota in quotas], np.int64),
        session_limits=np.array([UNLIMITED if quota.most is None else quota.most for quota in quotas], np.int64),
        sessions=np.array([quota.sessions for quota in quotas], np.int64),
        of_sessions=[
            tuple(number for number, quota in enumerate(quotas) if session.owner in quota.owners)
            for session in cluster.sessions
        ],
    )


@pytest.mark.parametrize("session_strategy", ["fifo", "lifo", "drf"])
def test_equal_to_the_plain_one(session_strategy: str) -> None:
    choice = random.Random(f"quotas {session_strategy}")  # a fixed seed
    reached = 0
    for number in range(400):
        cluster = random_cluster(choice, session_strategy, choice.choice(["concentrated", "dispersed"]))
        quotas = random_quotas(choice, cluster)
        agents, owners, queue, policy = columns_of(cluster)
        queue = replace(queue, quotas=columns_of_quotas(cluster, quotas))
        decisions = run_pass(agents, owners, queue, policy, cluster.round_robin_cursor)
        before = [(dict(quota.held), quota.sessions) for quota in quotas]
        plain = LimitedCluster(**{name: getattr(cluster, name) for name in Cluster.__dataclass_fields__}, quotas=quotas)
        expected = [name for name, _ in plain.run()]
        assert [queue.ids[row] for row in decisions.sessions] == expected, number
        for quota, (held, sessions) in zip(quotas, before, strict=True):
            grown = quota.sessions > sessions
            assert not grown or quota.most is None or quota.sessions <= quota.most
            for slot, limit in quota.limits.items():
                assert quota.held[slot] <= max(limit, held[slot])
        over = np.flatnonzero(decisions.verdicts == Verdict.OVER_QUOTA).tolist()
        reached += len(over)
        for row in over:
            why = decisions.explain(row)
            assert why is not None
            assert (why.tier, why.code) == (Tier.POLICY, QUOTA) or why.tier is Tier.CONFIGURATION
            assert why.tier is Tier.CONFIGURATION or why.message.startswith("q")
    assert reached > 1000
