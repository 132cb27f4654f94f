"""Reads from sockets that do not block, and says why one cannot listen."""

from __future__ import annotations

import os
import socket

from retinue.rpc.enrollment.managers import split_address


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


def listen_error(address: str) -> OSError:
    """Returns why a server of gRPC cannot listen at `host:port`, found out by listening there:
    gRPC itself says so in words of its core only.
    """
    reason = ""
    try:
        host, port = split_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except ValueError as error:
        reason = str(error)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
    return OSError(f"cannot listen at {address}: {reason}" if reason else f"cannot listen at {address}")
