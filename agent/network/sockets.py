"""Connections that begin inside the network namespace of a kernel.

A socket belongs to the namespace of the thread that makes it, for good: only that is done inside, all else outside. It
keeps the namespace in being, so that its holder has to close it when the kernel ends.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

from retinue.agent.errors import PortClosedError
from retinue.agent.host.lanes import in_thread
from retinue.agent.network.namespaces import run_inside

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retinue.agent.network.namespaces import NetworkNamespace

LOOPBACK = ("127.0.0.1", "::1")
# ip(7); Python has no name for it.
_IP_BIND_ADDRESS_NO_PORT = 24
# Errors that say only that another address may be tried.
_ELSEWHERE = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EAFNOSUPPORT}


async def connect(namespace: NetworkNamespace, port: int, addresses: Iterable[str], source: str = "") -> socket.socket:
    """Returns a connection to the first of the addresses, from inside the namespace,
    where something listens on the port.

    One to a loopback address of IPv4 comes from `source`, if one is given.

    Raises PortClosedError, NetworkError when the namespace cannot be entered, OSError, TimeoutError.
    """
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            connection = await _made(namespace, family)
        except OSError as error:
            if error.errno in _ELSEWHERE:
                continue
            raise
        try:
            if source and address.startswith("127."):
                # The port is chosen as the connection is made, when its other end is known.
                connection.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                connection.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(connection, (address, port))
        except OSError as error:
            connection.close()
            if error.errno not in _ELSEWHERE:
                raise
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise PortClosedError(f"nothing listens on port {port}")


async def _made(namespace: NetworkNamespace, family: socket.AddressFamily) -> socket.socket:
    making = asyncio.create_task(in_thread(_socket, namespace, family))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        # The thread continues, and its socket would hold the namespace.
        making.add_done_callback(_close)
        raise


def _close(made: asyncio.Task[socket.socket]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().close()


def _socket(namespace: NetworkNamespace, family: socket.AddressFamily) -> socket.socket:
    with namespace.opened() as descriptor:
        made = run_inside(descriptor, lambda: socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
