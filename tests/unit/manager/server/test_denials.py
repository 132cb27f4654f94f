"""Denied calls that are alike count together, however many there are."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from retinue.manager.server.denials import Denials, minute_of
from retinue.manager.store.accounts.audit import Denial

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
WRONG = Denial(NOON, "", "", "", "10.0.0.7", "/s/GetCaller", "UNAUTHENTICATED", "TOKEN_INVALID")
DENIED = Denial(NOON, "USER", "ada", "USER", "10.0.0.7", "/s/CreateUser", "PERMISSION_DENIED", "METHOD_DENIED")


def test_those_of_a_minute_are_one() -> None:
    denials = Denials()
    for _ in range(10_000):
        denials.count(WRONG)
    assert len(denials) == 1
    assert denials.take() == {WRONG: 10_000}
    assert denials.take() == {}


def test_whatever_differs_is_told_apart() -> None:
    denials = Denials()
    later = replace(WRONG, minute=NOON + dt.timedelta(minutes=1))
    different = [
        *(WRONG, DENIED, later, replace(WRONG, address="10.0.0.8"), replace(WRONG, method="/s/ListUsers")),
        *(replace(WRONG, reason="CREDENTIALS_MISSING"), replace(DENIED, principal="eve")),
    ]
    for denial in different:
        denials.count(denial)
    assert denials.take() == dict.fromkeys(different, 1)


def test_strangers_from_many_addresses_count_together_and_users_apart() -> None:
    denials = Denials(max_strangers=3, max_callers=2)
    for number in range(1000):
        denials.count(replace(WRONG, address=f"10.0.{number >> 8}.{number & 255}"))
    denials.count(DENIED)
    taken = denials.take()
    assert len(taken) == 5
    assert taken[WRONG.without_caller()] == 997
    assert taken[DENIED] == 1
    # Written meanwhile or not: they are those of this minute.
    denials.count(replace(WRONG, address="10.9.9.9"))
    denials.count(replace(WRONG, address="10.0.0.2"))
    assert denials.take() == {WRONG.without_caller(): 1, replace(WRONG, address="10.0.0.2"): 1}
    # The next minute tells others apart.
    later = replace(WRONG, address="10.9.9.9", minute=NOON + dt.timedelta(minutes=1))
    denials.count(later)
    assert denials.take() == {later: 1}


def test_what_is_not_written_is_kept_up_to_a_bound() -> None:
    denials = Denials(max_strangers=10, max_callers=10, max_waiting=4)
    for minute in range(6):
        denials.count(replace(WRONG, minute=NOON + dt.timedelta(minutes=minute)))
    assert (len(denials), denials.lost) == (4, 2)
    taken = denials.take()
    denials.count(replace(WRONG, minute=NOON + dt.timedelta(minutes=3)))
    denials.put_back(taken)
    assert (len(denials), denials.lost) == (4, 2)
    assert sum(denials.take().values()) == 5


def test_a_minute_begins_with_its_first_second() -> None:
    assert minute_of(NOON + dt.timedelta(seconds=59, microseconds=999_999)) == NOON
    assert minute_of(NOON + dt.timedelta(seconds=60)) == NOON + dt.timedelta(minutes=1)
