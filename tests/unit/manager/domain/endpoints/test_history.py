"""Samples of an endpoint: what comes back is what was put in, of the last hours only."""

from __future__ import annotations

import pytest

from retinue.manager.domain.endpoints.history import KEPT_SAMPLES, EndpointHistory, EndpointSample, Rates, rates
from retinue.manager.domain.endpoints.measures import Counters


def sample(time: int, **metrics: int) -> EndpointSample:
    return EndpointSample(time, target=2, ready=1, starting=1, held=0, metrics=metrics)


def test_what_comes_back_is_what_was_put_in() -> None:
    whole = EndpointSample(1, 5, 4, 1, 3, 12, 6, Rates(2_500, 0, 10, 250), {"concurrency": 48_000, "custom:x": 0})
    unknown = EndpointSample(2, 0, 0, 0, 0)
    history = EndpointHistory()
    history.add(whole)
    history.add(unknown)
    assert list(history.read()) == [whole, unknown]
    assert list(history.read(2)) == [unknown]
    assert list(history.read(3)) == []


def test_the_last_hours_are_kept() -> None:
    history = EndpointHistory()
    for time in range(KEPT_SAMPLES + 2):
        history.add(sample(time, queue=time))
    assert len(history) == KEPT_SAMPLES
    assert list(history.read()) == [sample(time, queue=time) for time in range(2, KEPT_SAMPLES + 2)]


def test_other_metrics_of_a_policy_begin_when_they_come() -> None:
    history = EndpointHistory()
    samples = [sample(1, queue=7), sample(2, latency=9, queue=8), sample(3, latency=10)]
    for item in samples:
        history.add(item)
    assert list(history.read()) == samples
    for time in range(4, KEPT_SAMPLES + 10):
        history.add(sample(time, latency=time))
    assert {name for item in history.read() for name in item.metrics} == {"latency"}


def test_numbers_that_replicas_claim_are_bounded() -> None:
    history = EndpointHistory()
    history.add(sample(1, queue=2**70))
    assert next(history.read()).metrics["queue"] == 2**62


BEFORE = Counters(1_000, requests=100, errors=5, buckets={10: 50, 100: 100})


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, BEFORE, Rates()),
        (BEFORE, None, Rates()),
        (BEFORE, BEFORE, Rates()),
        # A router went away, or its engine began anew.
        (BEFORE, Counters(2_000, requests=99, errors=5), Rates()),
        (BEFORE, Counters(61_000, 100, 5, {10: 50, 100: 100}), Rates(0, 0, None, None)),
        (BEFORE, Counters(3_000, 110, 6, {10: 59, 100: 110}), Rates(5_000, 500, 10, 100)),
    ],
)
def test_rates_are_differences_of_two_readings(before: Counters | None, now: Counters | None, expected: Rates) -> None:
    assert rates(before, now) == expected
