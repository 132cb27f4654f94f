"""What the autoscaler never does, over random policies and random loads."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.manager.domain.endpoints.scaling import (
    Decision,
    EndpointObservation,
    Metric,
    MetricKind,
    Rate,
    Reading,
    ScalerState,
    ScalingPolicy,
    decide,
    fresh_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TICK = 2_000
_LONG_AGO = -(10**9)


@st.composite
def policies(draw: st.DrawFn) -> ScalingPolicy:
    least = draw(st.integers(0, 4))
    metrics = draw(
        st.lists(
            st.builds(lambda kind, target: (kind, target), st.sampled_from(list(MetricKind)), st.integers(500, 8_000)),
            min_size=1,
            max_size=3,
        )
    )
    return ScalingPolicy(
        min=least,
        max=draw(st.integers(max(1, least), 60)),
        metrics=tuple(Metric(f"m{n}", target, kind) for n, (kind, target) in enumerate(metrics)),
        stable=draw(st.sampled_from([2_000, 10_000, 60_000])),
        burst=draw(st.sampled_from([2_000, 6_000])),
        hold_up=draw(st.sampled_from([0, 0, 10_000])),
        hold_down=draw(st.sampled_from([10_000, 60_000])),
        idle_after=draw(st.sampled_from([10_000, 60_000])),
        up=Rate(draw(st.sampled_from([0, 50, 100])), draw(st.integers(1, 4)), 15_000),
        down=Rate(draw(st.sampled_from([10, 50, 100])), 1, 60_000),
        fallback=draw(st.integers(0, 5)),
    )


@st.composite
def loads(draw: st.DrawFn) -> list[EndpointObservation]:
    """Returns what is seen at each tick: a load that stays for a while, then another,
    with gaps and partial readings.
    """
    ticks: list[EndpointObservation] = []
    for _ in range(draw(st.integers(1, 12))):
        known = [draw(st.integers(0, 60_000)) for _ in range(3)]
        missing = draw(st.sampled_from([0, 0, 0, 1, 3]))
        gap = draw(st.sampled_from([None, None, None, 0, 1]))
        readings = {
            f"m{n}": None if n == gap else Reading(0 if draw(st.booleans()) and n == 2 else value, missing)
            for n, value in enumerate(known)
        }
        in_flight = None if missing else draw(st.sampled_from([0, 1, known[0]]))
        seen = EndpointObservation(
            readings,
            in_flight,
            held=draw(st.sampled_from([0, 0, 0, 1, 5])),
            ready=draw(st.integers(0, 20)),
            starting=draw(st.sampled_from([0, 0, 2])),
        )
        ticks += [seen] * draw(st.integers(1, 15))
    return ticks


@dataclass(frozen=True, slots=True)
class Step:
    decision: Decision
    before: ScalerState
    after: ScalerState


def runs(policy: ScalingPolicy, ticks: list[EndpointObservation], start: int) -> Iterator[Step]:
    state = fresh_state(start, 0)
    for number, seen in enumerate(ticks):
        decision, after = decide(policy, state, seen, TICK * number)
        yield Step(decision, state, after)
        state = after


random_runs = given(policies(), loads(), st.integers(0, 60))


@settings(max_examples=150, deadline=None)
@random_runs
def test_what_never_happens(policy: ScalingPolicy, ticks: list[EndpointObservation], start: int) -> None:
    start = min(max(start, policy.min), policy.max)
    raised_at = None
    for number, step in enumerate(runs(policy, ticks, start)):
        now, before, target = TICK * number, step.decision.before, step.decision.target
        seen = step.decision.seen
        # Within the bounds.
        assert policy.min <= target <= policy.max
        # Nothing goes down soon after it went up, but to zero after known silence.
        if target < before and target > 0:
            assert raised_at is None or now - raised_at >= policy.hold_down
        if target > before:
            raised_at = now
        # A fresh state lowers nothing above zero.
        if now < policy.hold_down and target > 0:
            assert target >= before
        # What is held wakes at once.
        assert target >= 1 or seen.held == 0
        # Zero only after silence that is known.
        if before > 0 and target == 0:
            recent = [item for n, item in enumerate(ticks[: number + 1]) if TICK * n > now - policy.idle_after]
            assert all(item.in_flight == 0 and item.held == 0 and item.starting == 0 for item in recent)
        # Growth and decline keep to their rates.
        least = min(value for at, value in in_force(step.before, now, policy.up.period))
        assert target <= max(before, policy.min, least * (100 + policy.up.percent) // 100, least + policy.up.step)
        most = max(value for at, value in in_force(step.before, now, policy.down.period))
        if 0 < target < before:
            assert target >= min(most - 1, -(-most * (100 - policy.down.percent) // 100))


def in_force(state: ScalerState, now: int, period: int) -> list[tuple[int, int]]:
    begun = [item for item in state.targets if item[0] <= now - period]
    return begun[-1:] + [item for item in state.targets if item[0] > now - period] or list(state.targets)


@settings(max_examples=100, deadline=None)
@random_runs
def test_unknown_and_partial_totals_never_lower_above_zero(
    policy: ScalingPolicy, ticks: list[EndpointObservation], start: int
) -> None:
    unknown = [replace(seen, metrics=dict.fromkeys(seen.metrics), in_flight=None, starting=0) for seen in ticks]
    for step in runs(policy, unknown, min(max(start, policy.min), policy.max)):
        assert step.decision.target >= step.decision.before
    totals = replace(policy, metrics=tuple(replace(item, kind=MetricKind.TOTAL) for item in policy.metrics))
    partial = [
        replace(
            seen,
            metrics={name: reading and replace(reading, missing=1) for name, reading in seen.metrics.items()},
            in_flight=None,
        )
        for seen in ticks
    ]
    for step in runs(totals, partial, min(max(start, policy.min), policy.max)):
        assert step.decision.target >= step.decision.before


@settings(max_examples=100, deadline=None)
@given(policies(), loads(), st.integers(0, 60), st.integers(0, 2), st.integers(0, 30_000))
def test_more_load_never_gives_less_from_the_same_state(
    policy: ScalingPolicy, ticks: list[EndpointObservation], start: int, which: int, more: int
) -> None:
    *_, last = list(runs(policy, ticks, min(max(start, policy.min), policy.max)))
    seen, now = ticks[-1], TICK * (len(ticks) - 1)
    name = f"m{which}"
    reading = seen.metrics[name]
    if reading is None:
        return
    heavier = replace(seen, metrics={**seen.metrics, name: replace(reading, known=reading.known + more)})
    decision, _ = decide(policy, last.before, heavier, now)
    assert decision.target >= last.decision.target


@settings(max_examples=60, deadline=None)
@random_runs
def test_order_of_metrics_does_not_matter(policy: ScalingPolicy, ticks: list[EndpointObservation], start: int) -> None:
    start = min(max(start, policy.min), policy.max)
    other = replace(policy, metrics=policy.metrics[::-1])
    targets = [step.decision.target for step in runs(policy, ticks, start)]
    assert targets == [step.decision.target for step in runs(other, ticks, start)]
    assert targets == [step.decision.target for step in runs(policy, ticks, start)]


@settings(max_examples=60, deadline=None)
@random_runs
def test_a_clock_that_goes_back_stands_still(
    policy: ScalingPolicy, ticks: list[EndpointObservation], start: int
) -> None:
    *_, last = list(runs(policy, ticks, min(max(start, policy.min), policy.max)))
    now = TICK * len(ticks)
    there, _ = decide(policy, last.after, ticks[-1], last.after.last)
    back, state = decide(policy, last.after, ticks[-1], last.after.last - 3_600_000)
    assert there == back
    assert state.last == last.after.last < now


@pytest.mark.parametrize("seed", range(40))
def test_a_constant_load_is_met_and_then_nothing_moves(seed: int) -> None:
    choice = random.Random(seed)
    target, start = choice.choice([500, 1_000, 3_000]), choice.randint(1, 60)
    load = choice.randint(1, 60) * target - choice.randint(0, target - 1)
    policy = ScalingPolicy(min=1, max=60, metrics=(Metric("c", target),))
    state = settled(start)
    seen_at_480 = None
    for now in range(0, 1_200_001, TICK):
        _, state = decide(policy, state, EndpointObservation({"c": Reading(load)}, load, ready=state.target), now)
        if now == 480_000:
            seen_at_480 = state.target
    assert state.target == seen_at_480
    assert -(-10 * load // (11 * target)) <= state.target <= -(-load // target)


def test_a_burst_is_seen_within_4_s_and_its_whole_need_within_8_s() -> None:
    policy = ScalingPolicy(min=1, max=200, metrics=(Metric("c", 1_000),), up=Rate(100, 400, 15_000))
    for phase in range(0, TICK, 250):
        state, first, whole = settled(10), None, None
        for now in range(-60_000, 20_000, TICK):
            at = now + phase
            load = 100_000 if at >= 0 else 10_000
            decision, state = decide(policy, state, EndpointObservation({"c": Reading(load)}, load, ready=10), at)
            first = at if first is None and decision.target > 10 else first
            whole = at if whole is None and decision.target == 100 else whole
        assert first is not None
        assert first <= 4_000
        assert whole is not None
        assert whole <= 8_000


def test_a_load_from_before_the_sleep_does_not_wake() -> None:
    policy = ScalingPolicy(min=0, max=3, metrics=(Metric("m0", 1_400, MetricKind.TOTAL),), idle_after=10_000)
    assert policy.stable > policy.idle_after
    busy = EndpointObservation({"m0": Reading(12_000, 0)}, in_flight=12, ready=3)
    idle = EndpointObservation({"m0": Reading(0, 0)}, in_flight=0, ready=3)
    targets = [step.after.target for step in runs(policy, [busy] * 30 + [idle] * 60, 3)]
    assert 0 in targets
    assert set(targets[targets.index(0) :]) == {0}


def test_turns_are_bounded_under_a_load_that_swings() -> None:
    policy = ScalingPolicy(min=1, max=50, metrics=(Metric("c", 1_000),))
    for period in (60, 130, 600):
        state, turns, way = settled(5), 0, 0
        for now in range(0, 3_600_001, TICK):
            load = 25_000 + (20_000 if (now // 1000) % period < period // 2 else -20_000)
            decision, state = decide(
                policy, state, EndpointObservation({"c": Reading(load)}, load, ready=state.target), now
            )
            moved = (decision.target > decision.before) - (decision.target < decision.before)
            turns += bool(moved and way and moved != way)
            way = moved or way
        assert turns <= 2 * -(-3_600_000 // policy.hold_down) + 1


def settled(target: int) -> ScalerState:
    return replace(fresh_state(target, _LONG_AGO), last=-100_000, busy_at=-100_000, known_at=-100_000)
