"""What replicas use, from the reports of their agents: unknown is not zero, and of strangers nothing is believed."""

from __future__ import annotations

import uuid

import pytest

from retinue.manager.domain.endpoints import measures
from retinue.manager.domain.endpoints.scaling import Reading
from retinue.manager.domain.session.attempts import AttemptUsage
from retinue.manager.endpoints.usage import FRESH_SECONDS, ReplicaUsage
from retinue.manager.store.sessions.idle import MeasuredKernel

MAIN, SUB = uuid.UUID(int=1), uuid.UUID(int=2)
SLOTS = {"cpu": 2_000, "mem": 1_000, "cuda.device": 1_000}
ONE, TWO = f"{MAIN}.1", f"{SUB}.1"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def usage(clock: Clock) -> ReplicaUsage:
    """A replica of two kernels on two agents, whose metric `depth` is watched."""
    made = ReplicaUsage(clock)
    kernels = [MeasuredKernel(MAIN, MAIN, 1, "a1", SLOTS), MeasuredKernel(MAIN, SUB, 1, "a2", SLOTS)]
    assert made.unknown([MAIN]) == [MAIN]
    watches = made.watch({MAIN: frozenset({"depth"})}, kernels)
    # Only main1 has a published port.
    assert {key: dict(watch.metrics) for key, watch in watches.items()} == {"a1": {ONE: {"depth"}}, "a2": {}}
    return made


def sample(name: str, clock: float, cpu: float, gpu: float | None = None, **metrics: float) -> AttemptUsage:
    return AttemptUsage(name, clock, cpu, 250, gpu, metrics)


def test_use_is_a_share_of_what_all_kernels_hold(usage: ReplicaUsage) -> None:
    for moment in (0.0, 2.0):
        usage.add("a1", [sample(ONE, moment, moment, 80.0, depth=7.5)])
        # Half a replica is not known.
        assert usage.utilization(MAIN, "cpu") is None
    for moment in (0.0, 2.0):
        usage.add("a2", [sample(TWO, moment, 0.0, 20.0)])
    # One processor of the four that they hold.
    assert usage.utilization(MAIN, "cpu") == pytest.approx(25.0)
    assert usage.utilization(MAIN, "mem") == pytest.approx(25.0)
    assert usage.utilization(MAIN, "cuda.device") == pytest.approx(50.0)
    assert usage.utilization(MAIN, "tpu") is None
    assert usage.metric(MAIN, "depth") == 7.5
    assert usage.metric(MAIN, "other") is None
    assert usage.metric(uuid.UUID(int=9), "depth") is None


def test_what_is_old_or_of_a_stranger_is_unknown(usage: ReplicaUsage, clock: Clock) -> None:
    usage.add("a2", [sample(ONE, 0.0, 0.0, depth=99.0), sample(f"{uuid.UUID(int=9)}.1", 0.0, 0.0)])
    assert usage.metric(MAIN, "depth") is None
    usage.add("a1", [sample(ONE, 0.0, 0.0, depth=1.0)])
    clock.now = FRESH_SECONDS
    assert usage.metric(MAIN, "depth") == 1.0
    clock.now += 0.001
    assert usage.metric(MAIN, "depth") is None
    usage.watch({}, [])
    assert usage.unknown([MAIN]) == [MAIN]
    assert usage.metric(MAIN, "depth") is None


@pytest.mark.parametrize(
    ("values", "reading"),
    [
        ([], None),
        ([None, None], None),
        ([1.5, None, 2.0004], Reading(3_500, 1)),
        ([-5.0, 1e300], Reading(10**15)),
    ],
)
def test_replicas_are_added_up_within_bounds(values: list[float | None], reading: Reading | None) -> None:
    assert measures.of_replicas(values) == reading


def test_no_replica_bears_nothing_only_where_none_is_wanted() -> None:
    assert measures.of_replicas([], asleep=True) == Reading(0)
    assert measures.of_replicas([None], asleep=True) is None
    assert measures.of_query(None) is None
    assert measures.of_query(2.0) == Reading(2_000)
