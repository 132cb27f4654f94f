"""What a filter of a listening socket drops; tests/integration/manager/server/test_strangers.py has Linux run it."""

from __future__ import annotations

import ipaddress
import struct

import pytest

from retinue.manager.server.source_filter import MAX_NETWORKS, source_filter

# Linux has so much room for the options of a socket by default, and takes eight bytes for each instruction.
MEMORY = 20_480
NETWORKS = [f"198.51.100.{number}" for number in range(64)] + [f"2001:db8:{number:x}::/64" for number in range(64)]


def passes(program: bytes, source: str) -> bool:
    """Runs a program for the header of a packet, as the manual of the classic BPF has it."""
    address = ipaddress.ip_address(source)
    start = b"\x45" + bytes(11) if address.version == 4 else b"\x60" + bytes(7)
    header, kept, value, position = start + address.packed + bytes(20), [0, 0], 0, 0
    code = list(struct.iter_unpack("=HBBI", program))
    while True:
        operation, on_true, on_false, constant = code[position]
        position += 1
        match operation:
            case 0x30:
                value = header[constant - 0xFFF00000]
            case 0x20:
                value = int.from_bytes(header[constant - 0xFFF00000 :][:4])
            case 0x60:
                value = kept[constant]
            case 0x02:
                kept[constant] = value
            case 0x54:
                value &= constant
            case 0x05:
                position += constant
            case 0x15:
                position += on_true if value == constant else on_false
            case 0x06:
                return bool(constant)
            case _:
                raise AssertionError(operation)


@pytest.mark.parametrize(
    ("source", "passing"),
    [
        ("198.51.100.0", False),
        ("198.51.100.63", False),
        ("198.51.100.64", True),
        ("2001:db8:0::1", False),
        ("2001:db8:3f::ffff", False),
        ("2001:db8:3f:1::1", True),
        # The same words in another order, and those of an IPv4 address.
        ("0:3f:2001:db8::1", True),
        ("c633:6400::1", True),
    ],
)
def test_what_comes_from_a_network_is_dropped_and_nothing_else(source: str, passing: bool) -> None:
    assert len(NETWORKS) == MAX_NETWORKS
    assert passes(source_filter(NETWORKS), source) is passing


@pytest.mark.parametrize("network", ["198.51.100.1", "2001:db8::/64"])
def test_the_longest_fits(network: str) -> None:
    assert len(source_filter([network] * MAX_NETWORKS)) < MEMORY


def test_nothing_is_dropped_without_networks() -> None:
    assert passes(source_filter([]), "198.51.100.1")
    assert passes(source_filter([]), "2001:db8::1")
