"""Changes who is let in to the SFTP server of a jail that runs, and ends the connections of who is not let in any more.

The key of a connection is known by what the server printed when it let it in, and the connection by its address and
port. One of which nothing is known is ended: it may be by any key, and clients connect again.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from typing import TYPE_CHECKING

from retinue.agent.errors import NotRunningError
from retinue.agent.host.processes import PROC, Process, alive, identify, send_signal
from retinue.agent.kernel.paths import FILES
from retinue.agent.process.jail import APPLIED_KEYS, AUTHORIZED_KEYS, PORT, fingerprint, key_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_ESTABLISHED = "01"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
# The rest of the line says more of a certificate.
_ACCEPTED = re.compile(r"Accepted publickey for \S+ from (\S+) port (\d+) ssh2: (\S+) (SHA256:\S+)")
_CERTIFICATE = "-CERT"


def change(init: Process, keys: Collection[str]) -> bool:
    """Has new connections be let in by these keys only; returns whether those that are there may be by others. Blocks.

    Raises NotRunningError, OSError.
    """
    text = key_lines(keys)
    with _files(init) as directory:
        if _read(directory, APPLIED_KEYS) == text:
            return False
        former = set(_read(directory, APPLIED_KEYS).splitlines()) | set(_read(directory, AUTHORIZED_KEYS).splitlines())
        _replace(directory, AUTHORIZED_KEYS, text)
        if former <= set(text.splitlines()):
            _replace(directory, APPLIED_KEYS, text)
            return False
    return True


def end_others(init: Process, keys: Iterable[str], pids: Iterable[int], printed: Iterable[str]) -> int:
    """Ends connections that were not made with one of the keys, or a certificate;
    returns how many processes that ended. Blocks.

    `pids` are the processes in the jail, `printed` the lines of its output. Raises NotRunningError, OSError.
    """
    let_in = set(_fingerprints(keys))
    kept: set[tuple[str, int]] = set()
    for line in printed:
        if (found := _ACCEPTED.match(line)) is not None:
            port, kind, key = (found[1], int(found[2])), found[3], found[4]
            # Ports are used again: the last word counts.
            (kept.add if kind.endswith(_CERTIFICATE) or key in let_in else kept.discard)(port)
    sockets = {inode for port, inode in _connections(init) if port not in kept}
    ended = 0
    for pid in pids:
        process = identify(pid)
        if process is not None and not sockets.isdisjoint(_sockets_of(pid)):
            ended += send_signal(process, signal.SIGKILL)
    return ended


def _fingerprints(keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        # A line that is no key admits no user, and keeps no other from being withdrawn.
        with contextlib.suppress(ValueError, IndexError):
            yield fingerprint(key)


def settle(init: Process, keys: Collection[str]) -> None:
    """Records that no connections are left but those by these keys. Blocks. Raises NotRunningError, OSError."""
    with _files(init) as directory:
        _replace(directory, APPLIED_KEYS, key_lines(keys))


def _connections(init: Process) -> Iterator[tuple[tuple[str, int], str]]:
    """Yields the connections to the server: the address and port of the client,
    and the number of the server's socket.
    """
    for line in (PROC / str(init.pid) / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _ESTABLISHED and int(fields[1].rpartition(":")[2], 16) == PORT:
            address, _, port = fields[2].partition(":")
            # As the machine has it in memory.
            yield (socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder)), int(port, 16)), fields[9]


def _sockets_of(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                if (link := _SOCKET.fullmatch(os.readlink(entry.path))) is not None:
                    found.add(link[1])
    return found


@contextlib.contextmanager
def _files(init: Process) -> Iterator[int]:
    """Yields a descriptor of the directory of the server's files, which belongs to root in the jail."""
    try:
        directory = os.open(
            PROC / str(init.pid) / "root" / FILES.lstrip("/"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
    except OSError as error:
        raise NotRunningError("the server has ended") from error
    try:
        if not alive(init):
            raise NotRunningError("the server has ended")
        yield directory
    finally:
        os.close(directory)


def _read(directory: int, name: str) -> str:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with open(descriptor, encoding="utf-8") as file:
        return file.read()


def _replace(directory: int, name: str, text: str) -> None:
    fresh = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh, dir_fd=directory)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=directory)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
