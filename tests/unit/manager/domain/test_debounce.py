"""When rounds of work begin that follow on events."""

from __future__ import annotations

import pytest

from retinue.manager.domain.debounce import FIRST_SECONDS, Debounce


def rounds(debounce: Debounce, times: list[float]) -> list[float]:
    """Returns when the rounds of events at these times begin; one that comes before the next round has no other."""
    begun: list[float] = []
    for now in times:
        if not begun or begun[-1] <= now:
            begun.append(now + debounce.begin(now))
    return begun


def test_events_that_are_far_apart_wait_for_nothing() -> None:
    assert rounds(Debounce(0.05), [0.0, 0.1, 0.2, 0.25]) == [0.0, 0.1, 0.2, 0.25]


def test_the_second_of_two_waits_for_a_moment() -> None:
    assert rounds(Debounce(0.05), [1.0, 1.001]) == pytest.approx([1.0, 1.0 + FIRST_SECONDS])


def test_many_events_have_few_rounds_and_none_waits_for_longer_than_a_pause() -> None:
    times = [number / 1000 for number in range(1000)]
    begun = rounds(Debounce(0.05), times)
    assert len(begun) <= 25
    for now in times:
        served = next((at for at in begun if at >= now), None)
        assert served is None or served - now <= 0.05 + 1e-9


def test_after_a_rest_nothing_waits_again() -> None:
    debounce = Debounce(0.05)
    last = rounds(debounce, [number / 1000 for number in range(200)])[-1]
    assert debounce.begin(last + 0.06) == 0.0
