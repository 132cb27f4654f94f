"""A step is told from slow answers and from a clock that is adjusted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from manager.lifecycle.clock_steps import MIN_STEP_SECONDS, ClockLook, find_step

delays = st.floats(0.0, 30.0)


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
