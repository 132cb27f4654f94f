"""Addresses that no kernel may reach, from settings and from what agents say."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from typing import TYPE_CHECKING

from retinue.manager.dispatch.protected_addresses import (
    HostAddresses,
    control_plane_hosts,
    next_pause,
    node_addresses,
    resolve,
)
from retinue.manager.dispatch.sent_state import DesiredState, SentState
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable


def test_hosts_of_settings() -> None:
    hosts = control_plane_hosts(
        ("0.0.0.0:7440", "[2001:db8::1]:7441"),
        ("manager.example", "203.0.113.1", "203.0.113.2:443"),
        "postgresql+psycopg://someone:secret@203.0.113.9:5432/retinue",
    )
    expected = {"0.0.0.0", "2001:db8::1", "manager.example", "203.0.113.1", "203.0.113.2", "203.0.113.9"}  # noqa: S104
    assert hosts == {*expected, socket.gethostname()}
    assert control_plane_hosts((), (), "postgresql:///retinue?host=/run/postgresql") == {socket.gethostname()}


def test_what_means_every_node_itself_is_left_out() -> None:
    assert resolve(["127.0.0.1", "0.0.0.0", "169.254.1.2", "203.0.113.9", "no.such.host.invalid"]) == {"203.0.113.9"}  # noqa: S104


async def test_a_name_service_that_hangs_delays_no_caller() -> None:
    hung, answers = threading.Event(), {"fast.example": frozenset({"203.0.113.7"})}

    def look_up(names: Iterable[str]) -> frozenset[str]:
        (name,) = names
        if name not in answers:
            hung.wait(NEVER)
        return answers.get(name, frozenset())

    control_plane = HostAddresses(["203.0.113.9", "127.0.0.1", "fast.example", "slow.example"], look_up)
    running = asyncio.create_task(control_plane.run())
    try:
        assert control_plane.addresses() == {"203.0.113.9"}
        await control_plane.wait_answered(0.0)
        await eventually(control_plane.addresses, lambda found: found == {"203.0.113.9", "203.0.113.7"})
        answers["slow.example"] = frozenset({"203.0.113.8"})
        hung.set()
        await control_plane.wait_answered(NEVER)
        assert "203.0.113.8" in control_plane.addresses()
    finally:
        hung.set()
        running.cancel()
        await asyncio.wait((running,))


def test_a_name_without_an_address_is_looked_up_ever_more_seldom() -> None:
    pauses = itertools.accumulate(range(9), lambda pause, _: next_pause(pause, answered=False), initial=0.0)
    assert list(pauses)[1:9] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert next_pause(0, answered=True) == next_pause(60, answered=True) == 60


def test_addresses_of_nodes() -> None:
    places = [
        "203.0.113.1:7443",
        "203.0.113.1",
        "[2001:db8::1]:7443",
        "2001:db8::2",
        "node.example:7443",
        "",
        "127.0.0.1:1",
    ]
    assert node_addresses(places) == {"203.0.113.1", "2001:db8::1", "2001:db8::2"}


def test_an_agent_is_sent_what_changed() -> None:
    sent = SentState(DesiredState(), frozenset({"203.0.113.1", "203.0.113.2"}))
    assert not sent.advance(DesiredState(), (), frozenset({"203.0.113.1", "203.0.113.2"}))
    step = sent.advance(DesiredState(), (), frozenset({"203.0.113.2", "203.0.113.3"}))
    assert (step.added_protected, step.removed_protected) == (("203.0.113.3",), ("203.0.113.1",))
    assert not sent.advance(DesiredState(), None, frozenset({"203.0.113.2", "203.0.113.3"}))
