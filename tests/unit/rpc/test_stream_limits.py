"""How many streams a user may have open, and when one ends because a right ends."""

from __future__ import annotations

import contextlib

import pytest

from retinue.manager.identity.principal import Kind, Membership, Principal
from retinue.manager.server.authorization import METHODS
from retinue.manager.server.call_limits import STREAM_LIMITS
from retinue.rpc.core.errors import StreamLimit
from retinue.rpc.stream_limits import OpenStreams


@pytest.mark.attack("many-streams")
def test_each_user_and_method_has_its_own_count() -> None:
    streams = OpenStreams({"/a": 1}, default=2)
    with contextlib.ExitStack() as stack:
        stack.enter_context(streams.hold("/a", "ann"))
        with pytest.raises(StreamLimit) as caught:
            stack.enter_context(streams.hold("/a", "ann"))
        assert caught.value.metadata == {"limit": "1"}
        stack.enter_context(streams.hold("/a", "bob"))
        stack.enter_context(streams.hold("/b", "ann"))
        stack.enter_context(streams.hold("/b", "ann"))
        with pytest.raises(StreamLimit):
            stack.enter_context(streams.hold("/b", "ann"))
    with streams.hold("/a", "ann"):
        pass


def test_a_refused_stream_counts_for_nothing() -> None:
    streams = OpenStreams({}, default=1)
    for _ in range(3):
        with streams.hold("/a", "ann"), pytest.raises(StreamLimit), streams.hold("/a", "ann"):
            pass


def test_a_lower_limit_of_one_stream_holds_for_it() -> None:
    streams = OpenStreams({}, default=2)
    with streams.hold("/a", "ann", 1):
        with pytest.raises(StreamLimit) as caught, streams.hold("/a", "ann", 1):
            pass
        assert caught.value.metadata == {"limit": "1"}
        with streams.hold("/a", "ann", 1000), pytest.raises(StreamLimit), streams.hold("/a", "ann", 1000):
            pass


def test_limits_are_of_methods_there_are() -> None:
    assert set(STREAM_LIMITS) <= set(METHODS)


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        (("USER", ["a:MEMBER"]), ("USER", ["a:MEMBER"]), False),
        (("USER", ["a:MEMBER"]), ("USER", ["b:ADMIN", "a:MEMBER"]), False),
        (("USER", ["a:MEMBER"]), ("ADMIN", ["a:MEMBER"]), False),
        (("ADMIN", []), ("USER", []), True),
        (("USER", ["a:MEMBER"]), ("USER", []), True),
        (("USER", ["a:ADMIN"]), ("USER", ["a:MEMBER"]), True),
    ],
)
def test_lost_rights(before: tuple[str, list[str]], now: tuple[str, list[str]], *, lost: bool) -> None:
    assert _principal(*before).lost(_principal(*now)) is lost


def _principal(role: str, memberships: list[str]) -> Principal:
    found = tuple(Membership(*membership.split(":")) for membership in memberships)
    return Principal(Kind.USER, "ann", role, found)
