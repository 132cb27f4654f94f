"""How many wrong tokens an address may send, and whose are counted together."""

from __future__ import annotations

import pytest

from retinue.manager.server.wrong_tokens import WrongTokens, address_of


def test_a_burst_passes_and_what_is_more_waits() -> None:
    wrong = WrongTokens(burst=3, forgiven=0.5)
    assert [wrong.count("a", 0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 2.0, 4.0]
    # Others have their own count.
    assert wrong.count("b", 0.0) == 0.0
    # What it was asked to wait is enough.
    assert wrong.count("a", 6.0) == 0.0
    assert wrong.count("a", 6.0) > 0.0


def test_every_wait_has_an_end() -> None:
    wrong = WrongTokens(burst=3, forgiven=0.5)
    longest = [wrong.count("a", 0.0) for _ in range(1000)][-1]
    assert longest == (3 * 3 - 3) / 0.5
    assert wrong.count("a", 1000.0) == 0.0


def test_memory_is_bounded_and_keeps_those_who_continue() -> None:
    wrong = WrongTokens(burst=1, forgiven=0.001, max_addresses=10)
    for number in range(1000):
        wrong.count(f"other{number}", number)
        waits = wrong.count("busy", number)
        assert (waits > 0.0) == (number > 0)
        assert len(wrong) <= 10
    # One that was quiet was forgotten.
    assert wrong.count("other0", 1000.0) == 0.0


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:5123", "192.0.2.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:5123", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:5123", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5123", "fe80::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:5123", "192.0.2.7"),
        ("unix:/run/socket", "unix:/run/socket"),
        ("ipv4:odd", "ipv4:odd"),
        ("", ""),
    ],
)
def test_whose_are_counted_together(peer: str, address: str) -> None:
    assert address_of(peer) == address
