"""A timeout of a client is a length of time, which ends."""

from __future__ import annotations

import datetime as dt
import math

import pytest

from retinue.client import Client, UsageError, aio


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, dt.timedelta(0), dt.timedelta(seconds=-1)])
def test_no_timeout(timeout: float | dt.timedelta) -> None:
    for kind in (Client, aio.Client):
        with pytest.raises(UsageError, match="timeout must be more than 0"):
            kind.connect("127.0.0.1:1", token="t", timeout=timeout)


@pytest.mark.parametrize("timeout", [0.001, 1, 10**9, dt.timedelta(seconds=2)])
def test_a_timeout(timeout: float | dt.timedelta) -> None:
    aio.Client.connect("127.0.0.1:1", token="t", timeout=timeout)
