"""A socket for probes in the namespace of a session. Opening it blocks for a short time; nothing else does."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from typing import TYPE_CHECKING

from retinue.agent.network import namespaces
from retinue.agent.network.core.echo_packets import REPLY, REQUEST, TOKEN_BYTES, encode_request, parse_arrival
from retinue.agent.network.errors import NetworkError

if TYPE_CHECKING:
    from retinue.agent.network.core.echo_packets import Arrival

# linux/icmp.h, linux/in.h; Python has no names for them.
_SOL_RAW, _ICMP_FILTER = 255, 1
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
MAX_READ = 64
"""Packets that are taken from a socket in one go."""


class EchoSocket:
    """Sends probes from this node's address in a session's network, and receives what comes to it.

    The open socket keeps the namespace in being.
    """

    def __init__(self, opened: socket.socket, inode: int) -> None:
        """Takes over the socket; `inode` is that of its namespace."""
        self.inode = inode
        self._socket = opened
        self._token = secrets.token_bytes(TOKEN_BYTES)

    @classmethod
    def open(cls, namespace: str, address: str) -> EchoSocket:
        """Opens one in the named namespace. Blocks. Raises NetworkError, also when there is none."""
        with namespaces.opened_name(namespace) as descriptor:
            if descriptor is None:
                raise NetworkError(f"there is no network namespace {namespace}")
            inode = os.fstat(descriptor).st_ino
            return cls(namespaces.run_inside(descriptor, lambda: _open(address)), inode)

    def fileno(self) -> int:
        """Returns the descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, address: str, size: int, number: int) -> None:
        """Sends a probe of `size` bytes, never in fragments. What cannot be sent is lost, as on the way."""
        with contextlib.suppress(OSError):
            self._socket.sendto(encode_request(self._token, number, size), (address, 0))

    def receive(self) -> list[Arrival]:
        """Returns what has come, up to MAX_READ packets."""
        packets: list[bytes] = []
        with contextlib.suppress(OSError):
            while len(packets) < MAX_READ:
                packets.append(self._socket.recv(1 << 16))
        parsed = (parse_arrival(packet, self._token) for packet in packets)
        return [arrival for arrival in parsed if arrival is not None]

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def namespace_inode(namespace: str) -> int:
    """Returns the inode of the named namespace, 0 when there is none. Blocks. Raises NetworkError."""
    with namespaces.opened_name(namespace) as descriptor:
        return 0 if descriptor is None else os.fstat(descriptor).st_ino


def _open(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMP)
    try:
        made.setblocking(False)
        # Whatever was heard of a smaller MTU: a probe finds out what passes.
        made.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
        made.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", ~(1 << REQUEST | 1 << REPLY) & 0xFFFFFFFF))
        made.bind((address, 0))
    except OSError as error:
        made.close()
        raise NetworkError(f"cannot open a socket for probes at {address}: {error.strerror}") from error
    return made
