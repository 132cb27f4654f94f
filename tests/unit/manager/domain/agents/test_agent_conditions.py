"""Conditions of agents as they are stored."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from retinue.manager.domain.agents.agent_conditions import ORPHANS, OUT_OF_BOUNDS, QUARANTINED, kept
from retinue.manager.domain.session.attempts import NodeCondition

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
LATER = NOW + dt.timedelta(hours=1)


def test_a_condition_holds_since_it_was_stored_first() -> None:
    full = NodeCondition("DISK_FULL", "STATE", "1 MiB free")
    before = kept([full], [], NOW)
    again = kept([NodeCondition("DISK_FULL", "STATE", "0 B free")], before, LATER)
    assert again == [replace(before[0], message="0 B free")]
    assert again[0].since == NOW
    assert again[0].blocks


def test_an_agent_that_says_since_when_is_believed() -> None:
    damaged = NodeCondition("STATE_DAMAGED", since=NOW)
    assert kept([damaged], kept([NodeCondition("STATE_DAMAGED")], [], LATER), LATER)[0].since == NOW
    assert not kept([damaged], [], LATER)[0].blocks


@pytest.mark.parametrize(
    "kind", ["DISK_FULL", "UNKILLABLE", "NETWORK_DEGRADED", "ENGINE_UNRESPONSIVE", QUARANTINED, ORPHANS]
)
def test_nothing_is_placed_where_this_holds(kind: str) -> None:
    assert kept([NodeCondition(kind)], [], NOW)[0].blocks


@pytest.mark.parametrize("kind", ["STATE_DAMAGED", OUT_OF_BOUNDS, "OTHER"])
def test_this_keeps_no_placements_away(kind: str) -> None:
    assert not kept([NodeCondition(kind)], [], NOW)[0].blocks


def test_what_is_not_in_the_set_has_passed() -> None:
    both = [NodeCondition("UNKILLABLE", "a"), NodeCondition("UNKILLABLE", "b"), NodeCondition("UNKILLABLE", "a")]
    rows = kept(both, [], NOW)
    assert [row.reason for row in rows] == ["a", "b"]
    assert [row.reason for row in kept(both[1:2], rows, LATER)] == ["b"]
    assert kept([], rows, LATER) == []


def test_reasons_that_are_not_known_here_stay_apart() -> None:
    """A newer agent's, which become OTHER as they come in."""
    both = [
        NodeCondition("NETWORK_DEGRADED", "OTHER", "NEW: a"),
        NodeCondition("NETWORK_DEGRADED", "OTHER", "NEWER: b"),
    ]
    rows = kept(both, [], NOW)
    assert [row.message for row in rows] == ["NEW: a", "NEWER: b"]
    assert kept(both[1:], rows, LATER) == rows[1:]
    kinds = [NodeCondition("OTHER", message=message) for message in ("a", "b", "a")]
    assert [row.message for row in kept(kinds, [], NOW)] == ["a", "b"]
