"""Probes of paths: ICMP echo requests that nobody who has not received them can answer. Pure.

The payload of a request begins with a token that is kept secret, and the number of the request. Linux of the other node
answers it, whether an agent runs there or not, and sends the payload back.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

REQUEST, REPLY = 8, 0
TOKEN_BYTES = 8
_ICMP = struct.Struct("!BBHHH")
_PAYLOAD = struct.Struct(f"!{TOKEN_BYTES}sI")
_MIN_IP_HEADER = 20
SMALLEST = _MIN_IP_HEADER + _ICMP.size + _PAYLOAD.size
"""Bytes of the smallest probe, its IP header included."""
_NUMBERS = 1 << 32


@dataclass(frozen=True, slots=True)
class Arrival:
    """A packet that came: from which address, of how many bytes with its IP header, and, of an answer to a request with
    the token, the number of the request.
    """

    source: str
    size: int
    answered: int | None = None


def encode_request(token: bytes, number: int, size: int) -> bytes:
    """Returns an echo request as a raw socket takes it, of `size` bytes on the wire with its IP header."""
    payload = _PAYLOAD.pack(token, number % _NUMBERS).ljust(size - _MIN_IP_HEADER - _ICMP.size, b"\0")
    unchecked = _ICMP.pack(REQUEST, 0, 0, 0, 0) + payload
    return _ICMP.pack(REQUEST, 0, _checksum(unchecked), 0, 0) + payload


def parse_arrival(packet: bytes, token: bytes) -> Arrival | None:
    """Returns what a packet of a raw socket says; None of anything but an echo request, or an answer with the token.
    Never raises.
    """
    header = (packet[0] & 0xF) * 4 if packet else 0
    if header < _MIN_IP_HEADER or len(packet) < header + _ICMP.size:
        return None
    source = str(ipaddress.IPv4Address(packet[12:16]))
    match packet[header]:
        case 8:
            return Arrival(source, len(packet))
        case 0:
            payload = packet[header + _ICMP.size : header + _ICMP.size + _PAYLOAD.size]
            if len(payload) < _PAYLOAD.size:
                return None
            found, number = _PAYLOAD.unpack(payload)
            return Arrival(source, len(packet), number) if found == token else None
        case _:
            return None


def _checksum(data: bytes) -> int:
    """Returns the Internet checksum (RFC 1071)."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
