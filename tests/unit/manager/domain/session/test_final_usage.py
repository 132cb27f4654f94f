"""What attempts had used, as rows hold it."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict

import orjson
import pytest

from retinue.manager.domain.session.final_usage import FinalUsage, parse_final_usage

USAGE = FinalUsage(dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), cpu=1_500_000_000, memory_peak=2**33, written=0)


def test_it_is_read_as_it_was_written() -> None:
    assert parse_final_usage(orjson.loads(orjson.dumps(asdict(USAGE)))) == USAGE


@pytest.mark.parametrize("stored", [None, {}, [], 5, "x", {"cpu": 1}, {"time": "soon"}, {"time": None, "cpu": []}])
def test_a_damaged_row_says_nothing(stored: object) -> None:
    assert parse_final_usage(stored) is None


def test_fields_of_a_later_version_are_left_out() -> None:
    assert parse_final_usage({"time": None, "cpu": 3, "later": 1}) == FinalUsage(None, cpu=3)
