"""Conditions of agents as they are stored."""

from __future__ import annotations

import datetime as dt

from retinue.manager.dispatch.core.agent_conditions import stored
from retinue.manager.session.core.attempts import NodeCondition

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
LATER = NOW + dt.timedelta(hours=1)


def test_a_condition_holds_since_it_was_stored_first() -> None:
    full = NodeCondition("DISK_FULL", "STATE", "1 MiB free")
    before = stored([full], [], NOW)
    again = stored([NodeCondition("DISK_FULL", "STATE", "0 B free")], before, LATER)
    assert again == [{**before[0], "message": "0 B free"}]
    assert again[0]["since"] == NOW.isoformat()
    assert again[0]["blocks"]


def test_an_agent_that_says_since_when_is_believed() -> None:
    damaged = NodeCondition("STATE_DAMAGED", since=NOW)
    assert stored([damaged], stored([NodeCondition("STATE_DAMAGED")], [], LATER), LATER)[0]["since"] == NOW.isoformat()
    assert not stored([damaged], [], LATER)[0]["blocks"]


def test_what_is_not_in_the_set_has_passed() -> None:
    both = [NodeCondition("UNKILLABLE", "a"), NodeCondition("UNKILLABLE", "b"), NodeCondition("UNKILLABLE", "a")]
    rows = stored(both, [], NOW)
    assert [row["reason"] for row in rows] == ["a", "b"]
    assert [row["reason"] for row in stored(both[1:2], rows, LATER)] == ["b"]
    assert stored([], rows, LATER) == []
