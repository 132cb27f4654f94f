"""Quotas on small problems whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retinue.manager.domain.scheduling.policy import Policy, Tier
from retinue.manager.scheduling.columns import UNLIMITED, Agents, Owners, Queue, Quotas, Verdict
from retinue.manager.scheduling.scheduling_pass import Decisions, run_pass


def problem(cpus: list[int], quotas: Quotas | None, strategy: str = "drf") -> tuple[Agents, Owners, Queue, Policy]:
    """Sessions of one owner that ask for `cpus`, and an agent with ten."""
    number = len(cpus)
    return (
        Agents(
            ("cpu",),
            ["n0"],
            np.array([[10_000]]),
            np.array([[0]]),
            np.array([True]),
            ["x86_64"],
            np.zeros(1, np.int64),
        ),
        Owners(["ann"], np.array([1]), np.array([[0]])),
        Queue(
            ids=[f"s{row}" for row in range(number)],
            owners=np.zeros(number, np.int64),
            priorities=np.full(number, 10),
            orders=np.arange(number),
            single_node=np.ones(number, np.bool_),
            offsets=np.arange(number + 1),
            requests=np.array(cpus, np.int64).reshape(number, 1) * 1000,
            tries=np.zeros(number, np.int64),
            quotas=quotas,
        ),
        Policy(strategy, "concentrated"),
    )


def one_quota(number: int, *, limit: int = UNLIMITED, held: int = 0, most: int = UNLIMITED, there: int = 0) -> Quotas:
    return Quotas(
        names=["user ann"],
        slots=("cpu",),
        limits=np.array([[limit]]),
        held=np.array([[held]]),
        session_limits=np.array([most]),
        sessions=np.array([there]),
        of_sessions=[(0,)] * number,
    )


def verdicts(decisions: Decisions) -> list[Verdict]:
    return [Verdict(verdict) for verdict in decisions.verdicts]


P, O, B, N = Verdict.PLACED, Verdict.OVER_QUOTA, Verdict.BEHIND, Verdict.NO_ROOM  # noqa: E741


@pytest.mark.parametrize(
    ("cpus", "quotas", "strategy", "expected"),
    [
        # What is left after one is enough for a smaller one behind it.
        ([2, 3, 1, 1], one_quota(4, limit=4000), "drf", [P, O, P, P]),
        ([2, 3, 1, 1], one_quota(4, limit=4000), "fifo", [P, O, P, P]),
        ([2, 3, 1, 1], one_quota(4, limit=4000), "lifo", [P, O, P, P]),
        ([1, 1, 1], one_quota(3, most=2), "fifo", [P, P, O]),
        ([1, 1, 1], one_quota(3, most=2, there=1), "lifo", [O, O, P]),
        # Over it already, since it was lowered.
        ([1], one_quota(1, limit=1000, held=5000), "drf", [O]),
        ([1], one_quota(1, most=1, there=5), "drf", [O]),
        # The head that finds no room still holds up all behind it; one over its quota does not.
        ([9, 2, 1], one_quota(3, limit=9000), "fifo", [P, O, O]),
        ([9, 2, 1], one_quota(3, limit=20_000), "fifo", [P, N, B]),
        ([1, 1], None, "fifo", [P, P]),
    ],
)
def test_verdicts(cpus: list[int], quotas: Quotas | None, strategy: str, expected: list[Verdict]) -> None:
    assert verdicts(run_pass(*problem(cpus, quotas, strategy))) == expected


def test_a_slot_above_its_quota_blocks_only_sessions_that_ask_for_it() -> None:
    agents, owners, queue, policy = problem([1], one_quota(1, limit=0, held=5000))
    queue = replace(queue, requests=np.zeros((1, 1), np.int64))
    assert verdicts(run_pass(agents, owners, queue, policy)) == [P]


def test_the_reason_has_the_amounts_at_the_end_of_the_pass() -> None:
    decisions = run_pass(*problem([2, 3, 1], one_quota(3, limit=4000, held=500, most=2)))
    why = decisions.explain(1)
    assert why is not None
    assert (why.tier, why.code) == (Tier.POLICY, "QUOTA")
    assert why.message == "user ann has 2 of 2 sessions; user ann holds 3.5 of 4 cpu; this asks 3"
    assert decisions.explain(0) is None


def test_columns_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"quotas\.of_sessions has shape"):
        run_pass(*problem([1, 1], one_quota(1)))
