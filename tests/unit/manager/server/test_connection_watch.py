"""What is known of connections by their calls, and what their sockets say of themselves."""

from __future__ import annotations

import socket
import struct

import pytest

from retinue.manager.server.connection_watch import ConnectionCalls, endpoint_of_socket
from retinue.manager.server.wrong_tokens import endpoint_of, network_of

ADA, BOB = "ipv4:192.0.2.1:4711", "ipv6:%5B2001:db8::1%5D:4712"
ADA_AT, BOB_AT = ("192.0.2.1", 4711), ("2001:db8::1", 4712)


def test_calls_are_counted_by_connection() -> None:
    calls = ConnectionCalls()
    with calls.calling(ADA) as authenticated, calls.calling(ADA), calls.calling(BOB, authenticated=True):
        talk = calls.talks({ADA_AT, BOB_AT})[ADA_AT]
        assert (talk.calls, talk.open, talk.authenticated) == (2, 2, False)
        assert calls.authenticated(BOB_AT)
        authenticated()
        assert calls.authenticated(ADA_AT)
    talk = calls.talks({ADA_AT, BOB_AT})[ADA_AT]
    assert (talk.calls, talk.open, talk.authenticated) == (2, 0, True)
    # Of a connection, not of a call.
    with calls.calling(ADA):
        assert calls.authenticated(ADA_AT)


def test_connections_are_forgotten_once_two_looks_did_not_see_them() -> None:
    calls = ConnectionCalls()
    with calls.calling(ADA), calls.calling(BOB):
        pass
    calls.talks(set())
    # Seen in between: the count starts again.
    calls.talks({ADA_AT})
    assert list(calls.talks(set())) == [ADA_AT]
    # While a call is open, its connection counts.
    with calls.calling(ADA):
        calls.talks(set())
        calls.talks(set())
        assert len(calls) == 1
    calls.talks(set())
    assert len(calls) == 0


def test_calls_without_an_address_are_not_counted() -> None:
    calls = ConnectionCalls()
    with calls.calling("unix:/run/retinue.sock") as authenticated:
        authenticated()
    assert len(calls) == 0


@pytest.mark.parametrize(
    ("peer", "endpoint"),
    [
        (ADA, ADA_AT),
        (BOB, BOB_AT),
        ("ipv6:[2001:db8::1]:4712", BOB_AT),
        ("ipv6:%5B::ffff:192.0.2.1%5D:4711", ADA_AT),
        ("ipv6:%5Bfe80::1%25eth0%5D:4712", ("fe80::1", 4712)),
        ("unix:/run/x", None),
        ("ipv4:192.0.2.1", None),
        ("ipv4:300.0.2.1:1", None),
        ("ipv4:", None),
    ],
)
def test_ends_as_the_library_names_them(peer: str, endpoint: tuple[str, int] | None) -> None:
    assert endpoint_of(peer) == endpoint


@pytest.mark.parametrize(
    ("family", "rest", "endpoint"),
    [
        (socket.AF_INET, struct.pack(">H4s8x", 4711, bytes([192, 0, 2, 1])), ADA_AT),
        (socket.AF_INET6, struct.pack(">HI16sI", 4712, 0, socket.inet_pton(socket.AF_INET6, "2001:db8::1"), 0), BOB_AT),
        (
            socket.AF_INET6,
            struct.pack(">HI16sI", 4711, 0, socket.inet_pton(socket.AF_INET6, "::ffff:192.0.2.1"), 7),
            ADA_AT,
        ),
        (socket.AF_UNIX, b"/run/x", None),
    ],
)
def test_ends_as_sockets_name_them(family: int, rest: bytes, endpoint: tuple[str, int] | None) -> None:
    assert endpoint_of_socket(struct.pack("=H", family) + rest) == endpoint


def test_a_socket_without_a_name_has_no_end() -> None:
    assert endpoint_of_socket(b"") is None


def test_networks() -> None:
    assert network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("2001:db8:1:2:3::4") == "2001:db8:1:2::/64"
