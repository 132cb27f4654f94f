"""A step is distinguished from slow answers and from a clock that is adjusted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.controllers.core.clock_steps import MIN_STEP_SECONDS, ClockLook, find_step

delays = st.floats(0.0, 30.0)


@pytest.mark.parametrize("elapsed", [0.0, 1.0, 3600.0])
@pytest.mark.parametrize("seconds", [0.0, 4.9, -4.9, 5.1, -5.1, 60.0, -60.0])
def test_a_step_is_found_that_no_adjustment_explains(elapsed: float, seconds: float) -> None:
    last = ClockLook(1000.0, 1000.0, 5e6)
    found = find_step(last, ClockLook(1000.0 + elapsed, 1000.0 + elapsed, 5e6 + elapsed + seconds))
    if abs(seconds) < 5:
        assert found is None
    else:
        assert found is not None
        assert found.seconds == pytest.approx(seconds)
        assert (found.window, found.former) == (elapsed, 5e6 + elapsed)


@given(
    elapsed=st.floats(0.0, 100.0),
    delays=st.tuples(delays, delays, delays, delays),
    step=st.one_of(st.just(0.0), st.floats(120.0, 1e6), st.floats(-1e6, -120.0)),
)
def test_steps_are_found_whatever_is_slow(
    elapsed: float, delays: tuple[float, float, float, float], step: float
) -> None:
    # The moments at which the database read its clock, by the other one.
    first = 1000.0
    second = first + delays[1] + elapsed + delays[2]
    last = ClockLook(first - delays[0], first + delays[1], 5e6 + first)
    look = ClockLook(second - delays[2], second + delays[3], 5e6 + second + step)
    found = find_step(last, look)
    if step == 0.0:
        assert found is None
        return
    assert found is not None
    error = sum(delays) / 2 + MIN_STEP_SECONDS
    assert abs(found.seconds - step) <= error
    assert abs(found.former - (5e6 + second)) <= error
    assert found.window >= second - first
