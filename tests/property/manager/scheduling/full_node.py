"""One node that owners fill who never run out of work, and how much each of them wants."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.property.manager.scheduling.instances import decide
from tests.property.manager.scheduling.oracle import Agent, Cluster, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS = ["cpu", "mem", "ssd"]
Demand = tuple[int, ...]
bounded = settings(
    derandomize=True, deadline=None, max_examples=60, database=None, suppress_health_check=[HealthCheck.too_slow]
)
# The last two properties are proved for owners that want some of everything,
# so that the first slot to run out stops them all.
whole_demands = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=5)
WIDE = (600, 600, 600)


def fill(capacity: Demand, wanted: Sequence[Demand], weights: Sequence[int] = ()) -> list[int]:
    """Tasks of each owner when all have more work than the node can take."""
    amounts = [dict(zip(SLOTS, task, strict=True)) for task in wanted]
    sessions = []
    for owner, task in enumerate(wanted):
        most = min(total // part for total, part in zip(capacity, task, strict=True) if part)
        sessions += [
            Session(f"{owner}-{number}", f"o{owner}", 10_000 * owner + number, [amounts[owner]])
            for number in range(most + 1)
        ]
    node = dict(zip(SLOTS, capacity, strict=True))
    owners = {
        f"o{owner}": ((weights or [1] * len(wanted))[owner], dict.fromkeys(SLOTS, 0)) for owner in range(len(wanted))
    }
    decided, _ = decide(Cluster(SLOTS, [Agent("node", node, dict(node))], owners, sessions))
    tasks = [0] * len(wanted)
    for session, _ in decided:
        tasks[int(session.split("-")[0])] += 1
    return tasks


def part(capacity: Demand, task: Demand) -> Fraction:
    """A task's dominant share."""
    return max(Fraction(amount, total) for amount, total in zip(task, capacity, strict=True))
