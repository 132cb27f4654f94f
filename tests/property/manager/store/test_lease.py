"""However messages are delayed: a lease ends at its leader before another replica may take it."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.store.leadership.lease import (
    LEASE_SECONDS,
    VALID_SECONDS,
    Lease,
    LeaseObservation,
    NotLeader,
    Observer,
)

BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
delays = st.floats(0.0, 12.0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(
    # From the last answer to the next renewal, from there to its commit, and from there to its answer.
    renewals=st.lists(st.tuples(delays, delays, delays), max_size=8),
    # Between two looks of another manager, and from the look in the database to its answer.
    looks=st.lists(st.tuples(st.floats(0.01, 4.0), delays), min_size=1, max_size=60),
)
def test_no_replica_takes_a_lease_that_its_leader_holds_valid(
    renewals: list[tuple[float, float, float]], looks: list[tuple[float, float]]
) -> None:
    clock = Clock()
    lease = Lease(1, 0.0, clock)
    # When the leader holds its lease valid, and when which number is in the database.
    valid, numbers, answered = [(0.0, VALID_SECONDS)], [0.0], 0.0
    for before, there, back in renewals:
        sent = answered + before
        clock.now = sent
        if lease.remaining() <= 0:
            break
        answered = sent + there + back
        if answered - sent >= lease.remaining():
            # It is broken off, and may be committed or not: it was.
            numbers.append(sent + there)
            break
        numbers.append(sent + there)
        lease.renewed(sent)
        valid.append((answered, sent + VALID_SECONDS))

    observer, looked = Observer(), 0.0
    for pause, back in looks:
        looked += pause
        renewal = sum(number <= looked for number in numbers)
        if observer.has_ended(LeaseObservation(1, BEGAN, renewal), looked + back):
            # What takes it looks at the number once more.
            taken = looked + back
            if sum(number <= taken for number in numbers) == renewal:
                assert all(until <= taken for since, until in valid if since <= taken)
                return
        looked += back


def test_a_leader_checks_its_lease_after_a_pause() -> None:
    clock = Clock()
    lease = Lease(7, 0.0, clock)
    lease.check()
    clock.now = 4.0
    lease.renewed(3.5)
    clock.now = 8.0
    lease.check()
    clock.now = 3.5 + VALID_SECONDS
    with pytest.raises(NotLeader):
        lease.check()


def test_a_lease_ends_for_others_when_one_and_the_same_is_not_renewed() -> None:
    observer = Observer()
    first, second = LeaseObservation(1, BEGAN, 1), LeaseObservation(1, BEGAN, 2)
    assert not observer.has_ended(first, 100.0)
    assert not observer.has_ended(first, 100.0 + LEASE_SECONDS - 0.01)
    assert not observer.has_ended(second, 100.0 + LEASE_SECONDS)
    other = LeaseObservation(2, BEGAN, 2)
    assert not observer.has_ended(other, 200.0)
    assert observer.has_ended(other, 200.0 + LEASE_SECONDS)
