"""Rows as one parameter: whatever a row may hold is written as what it means."""

from __future__ import annotations

import datetime as dt
import enum
import json
import uuid
from typing import Any, NamedTuple

import numpy as np
import pytest

from retinue.manager.store.postgres.recordset import recordset


class Word(enum.StrEnum):
    FIRST = "first"


class Pair(NamedTuple):
    left: int
    right: str


ID = uuid.UUID("0e984725-c51c-4bf4-9960-e1c80e27aba0")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (ID, str(ID)),
        (dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC), "2026-01-02T03:04:05.000006+00:00"),
        (Word.FIRST, "first"),
        ({Word.FIRST: {Word.FIRST: 0.5}}, {"first": {"first": 0.5}}),
        ({1: 2}, {"1": 2}),
        ((1, "a", None), [1, "a", None]),
        (Pair(1, "b"), [1, "b"]),
        (np.float64(0.25), 0.25),
        (np.int64(7), 7),
        (True, True),
        (2**63 - 1, 2**63 - 1),
        ('é"\\\n\u2028', 'é"\\\n\u2028'),
    ],
)
def test_what_rows_hold(value: Any, written: Any) -> None:
    assert json.loads(recordset([{"value": value}])) == [{"value": written}]


def test_what_has_no_place_in_a_row() -> None:
    with pytest.raises(TypeError, match="set"):
        recordset([{"value": {1}}])
