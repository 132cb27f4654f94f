"""Which networks may open no connections for a while."""

from __future__ import annotations

from retinue.manager.server.penalties import (
    FIRST_SECONDS,
    FORGIVEN_SECONDS,
    KNOWN_SECONDS,
    LONGEST_SECONDS,
    Penalties,
)

FLOODER, OTHER = "192.0.2.1", "2001:db8::/64"


def test_who_floods_again_is_kept_out_for_twice_as_long_up_to_a_bound() -> None:
    penalties, now, seconds = Penalties(), 0.0, FIRST_SECONDS
    for _ in range(12):
        assert penalties.add([FLOODER], now) == {FLOODER: seconds}
        assert penalties.kept_out(now) == {FLOODER}
        # Connections from before are no further flood.
        assert penalties.add([FLOODER], now + seconds / 2) == {}
        now += seconds
        assert penalties.kept_out(now) == frozenset()
        seconds = min(2 * seconds, LONGEST_SECONDS)
    assert seconds == LONGEST_SECONDS
    assert penalties.add([OTHER], now) == {OTHER: FIRST_SECONDS}
    now += FORGIVEN_SECONDS
    assert penalties.add([FLOODER], now) == {FLOODER: FIRST_SECONDS}


def test_where_anyone_has_authenticated_of_late_nobody_is_kept_out() -> None:
    penalties = Penalties()
    penalties.know([FLOODER], 0.0)
    assert penalties.add([FLOODER, OTHER], KNOWN_SECONDS - 1) == {OTHER: FIRST_SECONDS}
    assert penalties.add([FLOODER], KNOWN_SECONDS) == {FLOODER: FIRST_SECONDS}
    assert penalties.kept_out(KNOWN_SECONDS) == {FLOODER}
    # A connection that was there before authenticates: the others behind that address are let in at once.
    penalties.know([FLOODER], KNOWN_SECONDS)
    assert penalties.kept_out(KNOWN_SECONDS) == frozenset()


def test_so_many_are_kept_out_at_a_time_those_that_flooded_last() -> None:
    penalties = Penalties(most=2)
    for number in range(5):
        penalties.add([f"192.0.2.{number}"], 0.0)
    assert penalties.kept_out(0.0) == {"192.0.2.3", "192.0.2.4"}
