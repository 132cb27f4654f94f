"""How many sessions of a user may wait without a quota: counted rarely, and never passed by what is made here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.domain.session import pending_limit
from retinue.manager.domain.session.pending_limit import PendingLimit

if TYPE_CHECKING:
    import pytest


def test_counted_when_nothing_is_known_or_too_little_is_left() -> None:
    limit = PendingLimit(10)
    assert not limit.spend("ada", 1, 0)
    assert limit.counted("ada", 4, 0) == 6
    assert limit.spend("ada", 6, 1)
    assert not limit.spend("ada", 1, 1)
    assert not limit.spend("ben", 1, 1)
    assert limit.counted("ada", 25, 1) == 0


def test_counted_again_after_a_while() -> None:
    limit = PendingLimit(10)
    limit.counted("ada", 0, 0)
    assert limit.spend("ada", 1, 9)
    assert not limit.spend("ada", 1, 11)


def test_each_user_has_a_count_of_its_own() -> None:
    limit = PendingLimit(10)
    assert limit.counted("ada", 10, 0) == 0
    assert limit.counted("ben", 0, 0) == 10
    assert not limit.spend("ada", 1, 1)
    assert limit.spend("ben", 10, 1)


def test_what_is_spent_does_not_put_off_the_next_count() -> None:
    limit = PendingLimit(10)
    limit.counted("ada", 0, 0)
    assert limit.spend("ada", 1, 6)
    assert not limit.spend("ada", 1, 12)


def test_those_counted_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_limit, "_MAX_USERS", 3)
    limit = PendingLimit(10)
    for user in ("ada", "ben", "cid", "ada", "dan"):
        limit.counted(user, 0, 0)
    assert [user for user in ("ada", "ben", "cid", "dan") if limit.spend(user, 1, 0)] == ["ada", "cid", "dan"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.floats(0, 5)), max_size=50))
def test_no_more_wait_than_may(steps: list[tuple[bool, int, float]]) -> None:
    limit, pending, now = PendingLimit(10), 0, 0.0
    for creates, number, pause in steps:
        now += pause
        if not creates:
            pending -= min(pending, number)
        elif limit.spend("ada", number, now):
            pending += number
        else:
            accepted = min(number, limit.counted("ada", pending, now))
            assert limit.spend("ada", accepted, now)
            pending += accepted
        assert pending <= 10
