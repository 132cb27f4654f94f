"""Builds the filter of a listening socket that drops packets of some networks: a program of the classic BPF, which any
process may attach to a socket of its own. Pure.

Linux runs it for each packet that reaches the listener. What it drops costs no process anything, and its sender waits
for an answer. A connection keeps the filter that there was when it was opened, and that one let it pass.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NETWORKS = 128
"""Networks that a filter has room for: Linux bounds the memory of a socket's options to 20 KB by default."""
_INSTRUCTION = struct.Struct("=HBBI")
# linux/filter.h, and SKF_NET_OFF: offsets from here on are into the IP header.
_LOAD_BYTE, _LOAD_WORD, _LOAD_KEPT, _KEEP = 0x30, 0x20, 0x60, 0x02
_AND, _JUMP, _JUMP_IF_EQUAL, _RETURN = 0x54, 0x05, 0x15, 0x06
_HEADER = 0xFFF0_0000
_DROP, _PASS = (_RETURN, 0, 0, 0), (_RETURN, 0, 0, 0xFFFF_FFFF)
_VERSION, _SOURCE_4, _SOURCE_6 = _HEADER, _HEADER + 12, _HEADER + 8
_Code = tuple[int, int, int, int]


def source_filter(networks: Iterable[str]) -> bytes:
    """Returns an array of `struct sock_filter` that drops IP packets from any of `networks`: IPv4 addresses, and IPv6
    networks of 64 bits, as `wrong_tokens.network_of` writes them; `MAX_NETWORKS` at most.
    """
    parsed = [ipaddress.ip_network(network) for network in networks]
    addresses = [int(one.network_address) for one in parsed if isinstance(one, ipaddress.IPv4Network)]
    prefixes = [int(one.network_address) >> 64 for one in parsed if isinstance(one, ipaddress.IPv6Network)]
    four: list[_Code] = [(_LOAD_WORD, 0, 0, _SOURCE_4)]
    for address in addresses:
        four += [(_JUMP_IF_EQUAL, 0, 1, address), _DROP]
    six: list[_Code] = [
        (_LOAD_WORD, 0, 0, _SOURCE_6),
        (_KEEP, 0, 0, 0),
        (_LOAD_WORD, 0, 0, _SOURCE_6 + 4),
        (_KEEP, 0, 0, 1),
    ]
    for prefix in prefixes:
        six += [(_LOAD_KEPT, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 3, prefix >> 32)]
        six += [(_LOAD_KEPT, 0, 0, 1), (_JUMP_IF_EQUAL, 0, 1, prefix & 0xFFFF_FFFF), _DROP]
    # Over dual-stack sockets, too, packets have the header of their own family.
    start: list[_Code] = [(_LOAD_BYTE, 0, 0, _VERSION), (_AND, 0, 0, 0xF0), (_JUMP_IF_EQUAL, 1, 0, 0x40)]
    start += [(_JUMP, 0, 0, len(four) + 1)]
    return b"".join(_INSTRUCTION.pack(*code) for code in (*start, *four, _PASS, *six, _PASS))
