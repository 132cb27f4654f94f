"""Reads from sockets that do not block."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket


def receive_available(connection: socket.socket, room: memoryview, count: int = 0) -> int:
    """Reads what has arrived, after the first `count` bytes of `room`, and returns how many bytes it then holds.
    Raises OSError.

    Few large messages cost least. 0 means, on a readable socket, that there is no more data.
    """
    while count < len(room):
        try:
            more = connection.recv_into(room[count:])
        except BlockingIOError:
            break
        if not more:
            break
        count += more
    return count
