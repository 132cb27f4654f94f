"""Even shares of devices add up to what was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.resources.core.allocation import InsufficientError
from tests.vectors.device_shares import share_evenly


@given(st.lists(st.integers(0, 100), min_size=1, max_size=6), st.integers(0, 300))
def test_even_shares_add_up(free: list[int], amount: int) -> None:
    devices_left = {f"d{index}": left * 10 for index, left in enumerate(free)}
    if amount > sum(free):
        with pytest.raises(InsufficientError):
            share_evenly(devices_left, amount * 10)
        return
    given_shares = share_evenly(devices_left, amount * 10)
    assert sum(given_shares.values()) == amount * 10
    assert all(share <= devices_left[device] for device, share in given_shares.items())
