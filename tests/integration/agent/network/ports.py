"""Ports of kernels as routers and gateways reach them: a server in the kernel, clients in other namespaces."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from tests.integration.agent.network.nodes import Node, inside
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.agent.network.outside import Outgoer

PORT = 8000
UNDERLAY = "192.0.2.1"


@contextlib.contextmanager
def server(kernel: Outgoer) -> Iterator[socket.socket]:
    with kernel.open(socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", PORT))
        listener.listen()
        yield listener


def talk(name: str, address: str, number: int, listener: socket.socket) -> str:
    """Has a client of a namespace exchange bytes with the kernel; returns the address that the kernel saw."""
    with inside(name, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as client:
        client.settimeout(NEVER)
        client.connect((address, number))
        connection, (seen, _) = listener.accept()
        with connection:
            client.sendall(b"question")
            assert connection.recv(100) == b"question"
            connection.sendall(b"answer")
            assert client.recv(100) == b"answer"
            return str(seen)


def refused(name: str, address: str, number: int) -> bool:
    """Whether a connection from a namespace is refused at once: nothing of the node itself listens there."""
    with inside(name, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as client:
        client.settimeout(NEVER)
        return client.connect_ex((address, number)) == 111


async def published(node: Node, kernel: Outgoer, *, closed: bool = False) -> int:
    address, number = await node.call("publish", kernel.attempt_id, PORT, closed)
    assert address == UNDERLAY
    assert 61_000 <= number < 63_768
    return int(number)
