"""Samples become rates, and rates windows; what is missing is left out."""

from __future__ import annotations

import pytest

from retinue.manager.domain.idle.utilization import Window, period_of, restored_window
from retinue.manager.domain.session.usage import Meter, Sample, Use, share_of

CPU5 = {"cpu": 5.0}


def metered(samples: list[Sample], longest: float = 30.0) -> Meter:
    meter = Meter()
    for sample in samples:
        meter.add(sample, longest)
    return meter


def test_rates_are_of_observed_time() -> None:
    meter = metered([Sample(10, 100.0, 50), Sample(20, 105.0, 100), Sample(40, 105.0, 400)])
    assert meter.seconds == 30
    use = meter.take()
    assert (use.seconds, use.cpu, use.memory) == (30, pytest.approx(5 / 30), pytest.approx((100 * 10 + 400 * 20) / 30))
    assert meter.seconds == 0


@pytest.mark.parametrize(
    "second",
    [
        Sample(1000, 200.0, 50),  # a gap
        Sample(5, 200.0, 50),  # another clock
        Sample(20, 1.0, 50),  # another counter
        Sample(20, None, 50),
        Sample(20, 200.0, None),
    ],
)
def test_samples_that_do_not_belong_together_are_no_observation(second: Sample) -> None:
    meter = metered([Sample(10, 100.0, 50), second])
    assert meter.seconds == 0
    meter.add(Sample(second.clock + 10, 300.0, 50), 30)
    assert meter.seconds == (10 if None not in (second.cpu, second.memory) else 0)


def test_a_cluster_counts_as_one_and_unallocated_slots_not_at_all() -> None:
    busy, quiet = Use(10, 2.0, 1000.0), Use(10, 0.0, 0.0)
    assert share_of([({"cpu": 2000, "mem": 1000}, busy), ({"cpu": 6000, "mem": 3000}, quiet)]) == {"cpu": 25, "mem": 25}
    assert share_of([({"cpu": 2000}, busy), ({"cpu": 2000, "cuda.device": 1000}, quiet)]) == {"cpu": 50}
    assert share_of([]) == {}


def test_nothing_is_known_before_anything_was_observed() -> None:
    window = Window(0, 100)
    assert window.read(CPU5, any_slot=False, at=1, patience=1) is None
    window.add(10, {"mem": 1.0})
    assert window.read(CPU5, any_slot=False, at=1, patience=1) is None


def left(window: Window, thresholds: dict[str, float], *, any_slot: bool = False) -> float:
    reading = window.read(thresholds, any_slot=any_slot, at=0, patience=1)
    assert reading is not None
    return reading.remaining


def test_what_is_left_while_nothing_is_used_and_after_use() -> None:
    window = Window(0, 160)
    for passed in range(10, 170, 10):
        window.add(10, {"cpu": 0.0})
        assert left(window, CPU5) == 160 - passed
    # All of one step: 10 s at 100 % in 160 s are 6.25 %, until they have left the window.
    window.add(10, {"cpu": 100.0})
    assert left(window, CPU5) == 160
    assert left(window, {"cpu": 7.0}) == 0
    for passed in range(10, 160, 10):
        window.add(10, {"cpu": 0.0})
        assert left(window, CPU5) == 160 - passed


def test_a_burst_does_not_hide_what_is_unused_but_for_it() -> None:
    window = Window(0, 160)
    window.add(80, {"cpu": 1.0})
    window.add(1, {"cpu": 90.0})
    window.add(79, {"cpu": 1.0})
    assert left(window, CPU5) == 0


def test_all_or_any_slot() -> None:
    window = Window(0, 160)
    window.add(160, {"cpu": 1.0, "mem": 90.0})
    both = {"cpu": 5.0, "mem": 10.0}
    assert left(window, both) == 160
    assert left(window, both, any_slot=True) == 0
    # A slot that the session does not hold is left out.
    assert left(window, {"cpu": 5.0, "cuda.device": 10.0}) == 0


def test_no_more_is_kept_than_the_window_needs_and_it_comes_back_whole() -> None:
    window = Window(5, 160)
    for _ in range(500):
        window.add(1, {"cpu": 3.0, "mem": 4.0})
    stored = window.record()
    assert len(stored.marks) <= 20
    again = restored_window(stored, 5, 160)
    one, other = (item.read(CPU5, any_slot=False, at=9, patience=1) for item in (window, again))
    assert one is not None
    assert one == other
    assert (one.observed, one.averages) == (500, {"cpu": pytest.approx(3.0)})
    assert restored_window(stored, 6, 160).read(CPU5, any_slot=False, at=9, patience=1) is None
    assert restored_window(stored, 5, 100).read(CPU5, any_slot=False, at=9, patience=1) is None
    assert restored_window(None, 5, 160).read(CPU5, any_slot=False, at=9, patience=1) is None


@pytest.mark.parametrize(("window", "period"), [(1, 0.5), (60, 3), (3600, 30), (86400, 30)])
def test_how_often_agents_report(window: float, period: float) -> None:
    assert period_of(window) == period
