"""The fast pass equals the plain oracle, decision for decision, on random problems."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.manager.scheduling import ordered, placement, rotation
from retinue.manager.scheduling.columns import UNPLACED, Verdict
from retinue.manager.scheduling.strategies import CONCENTRATED, DISPERSED, DRF, FIFO, LIFO, ROUND_ROBIN
from tests.property.manager.scheduling.instances import add_running, columns_of, decide, random_cluster, running_of

if TYPE_CHECKING:
    from tests.property.manager.scheduling.oracle import Cluster

SESSION_STRATEGIES = (FIFO, LIFO, DRF)
# Instances for each pair of strategies and each way through the code; 10,080 in all.
INSTANCES = 280
RUNNING_INSTANCES = 24
# Scans before an order is built, steps before a walk gives up, gang size from which room is counted:
# each way through the code.
WAYS = {"ordered": (0, 100, 64), "impatient": (0, 2, 2), "mixed": (3, 100, 3), "scanned": (1000, 100, 64)}


def check(cluster: Cluster) -> None:
    """Decides a problem both ways and compares; then checks what the rest of the answer claims."""
    rows = {session.id: row for row, session in enumerate(cluster.sessions)}
    agents, _, queue, _ = columns_of(cluster)
    expected = copy.deepcopy(cluster)
    wanted = expected.run()
    got, decisions = decide(cluster)
    assert got == wanted
    assert decisions.round_robin_cursor == expected.round_robin_cursor

    held = [[amounts[slot] for slot in cluster.slots] for _, amounts in expected.owners.values()]
    assert decisions.held.tolist() == held
    used = agents.used.copy()
    for row in rows.values():
        kernels = slice(queue.offsets[row], queue.offsets[row + 1])
        placed = decisions.verdicts[row] == Verdict.PLACED
        assert ((decisions.kernel_agents[kernels] != UNPLACED) == placed).all()
        if placed:
            np.add.at(used, decisions.kernel_agents[kernels], queue.requests[kernels])
        assert (decisions.explain(row) is None) == placed
    touched = (used != agents.used).any(axis=1)
    assert (used[touched] <= agents.capacity[touched]).all()
    assert agents.schedulable[touched].all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("agent_strategy", [CONCENTRATED, DISPERSED, ROUND_ROBIN])
@pytest.mark.parametrize("session_strategy", SESSION_STRATEGIES)
def test_equals_the_oracle(
    session_strategy: str, agent_strategy: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, steps, counted = WAYS[way]
    monkeypatch.setattr(ordered, "SCANS_BEFORE_ORDER", scans)
    monkeypatch.setattr(ordered, "STEPS_BEFORE_SCAN", steps)
    monkeypatch.setattr(rotation, "STEPS_BEFORE_SCAN", steps)
    monkeypatch.setattr(placement, "COUNTED_GANG", counted)
    for seed in range(INSTANCES):
        choice = random.Random(f"{session_strategy} {agent_strategy} {way} {seed}")  # the same problems every time
        check(random_cluster(choice, session_strategy, agent_strategy))


@pytest.mark.parametrize("agent_strategy", [CONCENTRATED, DISPERSED, ROUND_ROBIN])
@pytest.mark.parametrize("session_strategy", SESSION_STRATEGIES)
def test_reservations_and_preemption_equal_the_oracle(
    session_strategy: str, agent_strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = preempted = 0
    for seed in range(RUNNING_INSTANCES):
        scans, steps, counted = list(WAYS.values())[seed % len(WAYS)]
        monkeypatch.setattr(ordered, "SCANS_BEFORE_ORDER", scans)
        monkeypatch.setattr(ordered, "STEPS_BEFORE_SCAN", steps)
        monkeypatch.setattr(rotation, "STEPS_BEFORE_SCAN", steps)
        monkeypatch.setattr(placement, "COUNTED_GANG", counted)
        # The same problems every time.
        choice = random.Random(f"running {session_strategy} {agent_strategy} {seed}")
        cluster = add_running(choice, random_cluster(choice, session_strategy, agent_strategy))
        expected = copy.deepcopy(cluster)
        wanted = expected.run()
        got, decisions = decide(cluster)
        assert got == wanted, seed
        agents, _, queue, _ = columns_of(cluster)
        reservation = decisions.reservation
        assert expected.reservation == (
            None
            if reservation is None
            else (
                queue.ids[reservation.session],
                reservation.after,
                [agents.ids[row] for row in reservation.agents.tolist()],
            )
        ), seed
        preemptions = [
            (
                queue.ids[each.winner],
                [agents.ids[row] for row in each.agents.tolist()],
                [running_of(cluster).ids[row] for row in each.victims],
            )
            for each in decisions.preemptions
        ]
        assert preemptions == expected.preemptions, seed
        for each in decisions.preemptions:
            for victim in each.victims:
                assert cluster.running[victim].preemptible
                assert cluster.running[victim].priority < queue.priorities[each.winner]
        for row in range(len(queue.ids)):
            assert (decisions.explain(row) is None) == (queue.ids[row] in dict(got))
        reserved += reservation is not None
        preempted += len(preemptions)
    assert reserved + preempted > 0


@settings(
    derandomize=True, deadline=None, max_examples=150, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    choice=st.randoms(use_true_random=False),
    session_strategy=st.sampled_from(SESSION_STRATEGIES),
    agent_strategy=st.sampled_from([CONCENTRATED, DISPERSED, ROUND_ROBIN]),
)
def test_equals_the_oracle_on_shrinkable_problems(
    choice: random.Random, session_strategy: str, agent_strategy: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "SCANS_BEFORE_ORDER", 0)
        check(random_cluster(choice, session_strategy, agent_strategy))


def test_the_oracle_is_not_the_pass() -> None:
    """A comparison that cannot fail proves nothing: a spoiled oracle must be noticed."""
    choice = random.Random("spoiled")  # the same problems every time
    differences = 0
    for _ in range(50):
        cluster = random_cluster(choice, DRF, CONCENTRATED)
        spoiled = copy.deepcopy(cluster)
        spoiled.agent_strategy = DISPERSED
        differences += decide(cluster)[0] != spoiled.run()
    assert differences > 10
