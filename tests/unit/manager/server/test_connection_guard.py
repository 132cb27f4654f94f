"""Networks that are to be kept out are, also when that fails at first."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from retinue.manager.server.connection_watch import ConnectionCalls, Guard, Sockets
from retinue.manager.server.penalties import FIRST_SECONDS
from retinue.manager.server.strangers import Sight, Strangers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from retinue.manager.server.wrong_tokens import Endpoint


class _Sockets(Sockets):
    def __init__(self) -> None:
        super().__init__(())
        self.kept_out: list[set[str]] = []
        self.failures = 0

    def look(self, authenticated: Callable[[Endpoint], bool]) -> list[Sight]:
        return []

    def keep_out(self, networks: Collection[str]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("no memory for a filter")
        self.kept_out.append(set(networks))


class _Flooded(Strangers):
    def __init__(self) -> None:
        super().__init__(256, 1024)

    def _opening(self, new: object, now: float) -> set[str]:
        return {"192.0.2.1"} if now < 1 else set()


def test_a_network_is_kept_out_and_let_in_again() -> None:
    sockets = _Sockets()
    guard = Guard(ConnectionCalls(), sockets, _Flooded())
    for now in (0.0, 0.5, FIRST_SECONDS, FIRST_SECONDS + 1):
        guard.look(now)
    assert sockets.kept_out == [{"192.0.2.1"}, set()]


def test_what_fails_is_tried_again() -> None:
    sockets = _Sockets()
    guard = Guard(ConnectionCalls(), sockets, _Flooded())
    sockets.failures = 1
    guard.look(0.0)
    guard.look(0.5)
    sockets.failures = 2
    for now in (FIRST_SECONDS, FIRST_SECONDS + 1, FIRST_SECONDS + 2):
        guard.look(now)
    assert sockets.kept_out == [{"192.0.2.1"}, set()]


class _Nobody(Strangers):
    def __init__(self) -> None:
        super().__init__(256, 1024)


def test_without_strangers_a_new_descriptor_is_looked_at() -> None:
    guard = Guard(ConnectionCalls(), _Sockets(), _Nobody())
    assert not guard.is_quiet(0.0)
    guard.look(0.0)
    assert guard.is_quiet(0.5)
    with socket.socket():
        assert not guard.is_quiet(0.5)
    # In any case, as one may take the place of another.
    assert not guard.is_quiet(1.0)


def test_beside_what_is_kept_out_nothing_is_quiet() -> None:
    guard = Guard(ConnectionCalls(), _Sockets(), _Flooded())
    for now in (0.0, 2.0):
        guard.look(now)
        assert guard.is_quiet(now) == (now > 1)
