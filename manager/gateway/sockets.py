"""Sockets between the manager and its engine: names in the abstract namespace, which leave nothing behind,
for one user of the machine only.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_BACKLOG = 128
_PAUSE_SECONDS = 0.1


def new_name() -> str:
    """Returns a unique name."""
    return f"retinue-gateway-{secrets.token_hex(16)}"


def listen(name: str) -> socket.socket:
    """A listening socket of that name, which does not block."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(f"\0{name}")
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def peer_user(connection: socket.socket) -> int:
    """Returns the user id of the peer, as the kernel knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


async def accepted(listening: socket.socket, user: int) -> AsyncIterator[socket.socket]:
    """Yields the connections of one user of the machine; those of others are closed."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError:
            # Too many open files, or a client that had closed already.
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        if peer_user(connection) == user:
            yield connection
        else:
            connection.close()
