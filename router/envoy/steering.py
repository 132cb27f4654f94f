"""The sockets of an engine, seen from outside: its connections of clients,
and where new ones go while two engines listen at one port.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

# In /proc/net/tcp.
_ESTABLISHED, _LISTENING = "01", "0A"
_SO_ATTACH_REUSEPORT_CBPF = 51
_PIDFD_GETFD = 438
# `BPF_RET | BPF_K`: returns a constant, which is the place of a socket in its group.
_RETURN = 0x06


def connected(pid: int, port: int) -> bool:
    """Returns whether a process has a connection that came in at a port. Blocks."""
    return bool(_sockets(pid, port, _ESTABLISHED))


def waiting(pid: int, port: int) -> bool:
    """Returns whether a process has connections that it did not accept yet at a port where it listens. Blocks."""
    return any(found.queued for found in _sockets(pid, port, _LISTENING))


def steer_to_newest(pid: int, port: int) -> None:
    """Makes the kernel give all new connections at a port to the second of two processes that listen there,
    of which `pid` is one.

    The first can then take what waits for it, and close: what waits for a socket that closes is lost. Raises OSError.
    Blocks.
    """
    place = 1
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, place))
    program = struct.pack("HL", 1, ctypes.addressof(instruction))
    process = os.pidfd_open(pid)
    try:
        for listening in _sockets(pid, port, _LISTENING):
            copy = _LIBC.syscall(_PIDFD_GETFD, process, listening.number, 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), "the listening socket of another process")
            with socket.socket(fileno=copy) as found:
                found.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)
    finally:
        os.close(process)


_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _Socket:
    """A descriptor of a process, and what its socket has received: bytes, or connections while it listens."""

    number: int
    queued: int


def _sockets(pid: int, port: int, state: str) -> list[_Socket]:
    """Returns the TCP sockets of a process at a port of its own and in a state; none of one that has ended."""
    queued = {}
    for table in (Path(f"/proc/{pid}/net/tcp"), Path(f"/proc/{pid}/net/tcp6")):
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == state:
                    queued[f"socket:[{fields[9]}]"] = int(fields[4].rpartition(":")[2], 16)
    found = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (inode := os.readlink(entry)) in queued:
                    found.append(_Socket(int(entry.name), queued[inode]))
    return found
