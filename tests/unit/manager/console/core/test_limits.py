"""How often a token may be tried, and how many sockets a user may have."""

from __future__ import annotations

from retinue.manager.console.core.limits import MAX_SOCKETS, MAX_TRIES, TRIES_SECONDS, OpenSockets, Tries


def test_ten_tries_a_minute() -> None:
    tries = Tries()
    assert [tries.count("a", 100.0 + second) for second in range(MAX_TRIES)] == [0] * MAX_TRIES
    # What is refused does not count, and each try is forgotten by itself.
    assert [tries.count("a", 110.0), tries.count("a", 159.5)] == [50, 1]
    assert tries.count("b", 110.0) == 0
    assert tries.count("a", 100.0 + TRIES_SECONDS) == 0
    assert tries.count("a", 100.5 + TRIES_SECONDS) == 1


def test_few_keys_are_remembered() -> None:
    tries = Tries(max_keys=3)
    for number in range(10):
        tries.count(f"192.0.2.{number}", 0.0)
    assert len(tries) == 3


def test_a_user_has_so_many_sockets() -> None:
    sockets = OpenSockets()
    assert all(sockets.open("ada") for _ in range(MAX_SOCKETS))
    assert not sockets.open("ada")
    assert sockets.open("bob")
    sockets.close("ada")
    assert sockets.open("ada")
    for _ in range(MAX_SOCKETS):
        sockets.close("ada")
    sockets.close("bob")
    assert len(sockets) == 0
