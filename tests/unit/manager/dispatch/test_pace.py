"""How fast a sender is read that sends ever more."""

from __future__ import annotations

import random

import pytest

from retinue.manager.dispatch.agent_link import Pace


def test_a_burst_is_taken_at_once_and_what_comes_after_it_at_the_rate() -> None:
    pace = Pace(rate=100.0, burst=5)
    assert [pace.take(10.0) for _ in range(5)] == [0.0] * 5
    assert pace.take(10.0) == pytest.approx(0.01)
    assert pace.take(10.01) == pytest.approx(0.01)
    # A pause gives back, and never more than a burst.
    assert [pace.take(1000.0) for _ in range(5)] == [0.0] * 5
    assert pace.take(1000.0) > 0


def test_over_any_time_no_more_is_read_than_the_rate_allows() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        pace, now = Pace(rate=50.0, burst=10), 0.0
        for taken in range(1, 2001):
            now += chance.choice([0.0, 0.001, 0.1]) + pace.take(now)
            assert taken <= 10 + 50.0 * now + 1


def test_who_keeps_to_the_rate_never_waits() -> None:
    pace = Pace(rate=50.0, burst=1)
    assert all(pace.take(number / 50.0 + 1e-6 * number) == 0.0 for number in range(1000))
