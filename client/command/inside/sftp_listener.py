"""`retinue sftp --listen`: a port of this machine that leads to a session's SFTP server,
for clients that start no program to connect.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import socket
from typing import TYPE_CHECKING

import click

from retinue.client.command.inside import ssh_access
from retinue.client.command.shell.printable import safe
from retinue.client.errors import CallError, Unavailable, UsageError
from retinue.client.kernel import direct_connection
from retinue.client.kernel.port import LocalPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from retinue.client.kernel.port import PortConnection, Remote
    from retinue.client.sessions import Session

_READ = 256 << 10
_PORTS = range(65_536)


async def listen(session: Session, endpoint: str, kernel: str, where: str, host_key: str) -> None:
    """Listens at `[ADDRESS:]PORT` until the session ends, and prints what clients need to connect.

    `endpoint` is where the manager is reached. Raises UsageError, CallError.
    """
    address, number = _parsed(where)

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[Remote]:
        async with session.open_port(ssh_access.PORT, kernel, direct=True) as stream:
            direct = await direct_connection.connect(stream, endpoint)
            if direct is None:
                yield stream
                return
            with direct:
                yield _DirectConnection(direct, stream)

    # Errors that no later connection could mend are reported now.
    async with session.open_port(ssh_access.PORT, kernel):
        pass
    port = LocalPort(connect, address, number, failed=_print_failure)
    try:
        await port.__aenter__()
    except OSError as error:
        raise UsageError(f"cannot listen at {where}: {error.strerror}") from error
    try:
        host, number = port.address
        kind, key = host_key.split()
        digest = base64.b64encode(hashlib.sha256(base64.b64decode(key)).digest()).decode().rstrip("=")
        click.echo(f"sftp://{ssh_access.USER}@{f'[{host}]' if ':' in host else host}:{number} -> {safe(session.name)}")
        click.echo(f"host key {kind} SHA256:{digest}")
        click.echo(f"known_hosts [{host}]:{number} {kind} {key}")
        await session.wait_ended()
    finally:
        await port.__aexit__(None, None, None)
    click.echo(f"{safe(session.name)} has ended", err=True)


def _parsed(where: str) -> tuple[str, int]:
    address, _, number = where.rpartition(":")
    address = address.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (number.isascii() and number.isdecimal() and int(number) in _PORTS):
        raise UsageError(f"{where!r} is not [ADDRESS:]PORT")
    return address, int(number)


def _print_failure(error: CallError) -> None:
    click.echo(safe(str(error)), err=True)


class _DirectConnection:
    """A connection to the node itself; the stream beside it says why it has ended."""

    max_message = _READ

    def __init__(self, connected: socket.socket, stream: PortConnection) -> None:
        self._socket = connected
        self._stream = stream

    async def views(self) -> AsyncIterator[memoryview]:
        loop, room = asyncio.get_running_loop(), memoryview(bytearray(_READ))
        with _as_call_error():
            while count := await loop.sock_recv_into(self._socket, room):
                yield room[:count]

    async def write(self, data: bytes | memoryview) -> None:
        with _as_call_error():
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def end_data(self) -> None:
        with _as_call_error():
            self._socket.shutdown(socket.SHUT_WR)

    async def finish(self) -> None:
        await self._stream.finish()


@contextlib.contextmanager
def _as_call_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the connection to the node broke: {error.strerror}") from error
