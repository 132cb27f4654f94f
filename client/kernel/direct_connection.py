"""Connections past the stream of OpenPort: to the node itself where that can be reached, else to the manager's port,
which leads there. The stream stays open beside them, ends with them, and says why they ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from retinue.client.errors import Aborted, CallError
from retinue.client.settings import ssh_directory
from retinue.client.transport.channel import parse_endpoints
from retinue.rpc import direct_port, file_frames
from retinue.rpc.tls_socket import NAME, READ, TlsSocket, tls_context
from retinue.types.v1 import port_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from retinue.client.kernel.port import PortConnection

CONNECT_SECONDS = 1.0
"""What reaching a node may take: its kernel accepts connections, however busy the agent is. Then the stream is used."""
ADMIT_SECONDS = 5.0
"""What a node that was reached may take to answer the ticket: its agent may be busy."""
SILENT_SECONDS = 60.0
"""For so long, a node that has not answered is not connected to again."""
# What the stream may take to say why a connection was reset.
_REASON_SECONDS = 5.0


async def connect(remote: PortConnection, endpoint: str) -> socket.socket | None:
    """Returns a connection past the stream, which does not block: to the node,
    else to the manager that is reached at the endpoint.

    None: the stream carries the data. Raises CallError.
    """
    if remote.direct_port is None:
        return None
    directory, ports = ssh_directory(os.environ), [remote.direct_port]
    if (relay := remote.relay_port) is not None:
        # Of several managers, one knows the ticket.
        hosts = dict.fromkeys(host for host, _ in parse_endpoints(endpoint))
        ports += [port_pb2.DirectPort(host=host, port=relay.port, ticket=relay.ticket) for host in hosts]
    for port in ports:
        if (connection := await connect_to(port, directory)) is not None:
            return connection
    await remote.refuse_direct()
    return None


async def connect_to(port: port_pb2.DirectPort, directory: Path) -> socket.socket | None:
    """Returns a connection to a direct port; None when none is made in time,
    which a file in the directory keeps for a minute.
    """
    silent = directory / f"silent-{quote(f'{port.host}:{port.port}', safe='')}"
    if _is_recent(silent):
        return None
    try:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS) as limit:
            return await direct_port.connect(port, on_reached=lambda: limit.reschedule(loop.time() + ADMIT_SECONDS))
    except TimeoutError:
        with contextlib.suppress(OSError):
            silent.touch()
    except OSError:
        pass
    return None


def _is_recent(file: Path) -> bool:
    try:
        return 0 <= time.time() - file.stat().st_mtime < SILENT_SECONDS
    except OSError:
        return False


@contextlib.asynccontextmanager
async def encrypted(remote: PortConnection, endpoint: str) -> AsyncIterator[DirectConnection | None]:
    """Yields a connection past a stream that is encrypted by TLS; None: the stream carries the data. Raises CallError.

    `endpoint` is where the manager is reached.
    """
    port = remote.direct_port
    if port is not None and not port.identity:
        await remote.refuse_direct()
    connected = await connect(remote, endpoint)
    if connected is None or port is None:
        yield None
        return
    with connected:
        connected.setblocking(False)
        made = DirectConnection(connected, port.identity, remote)
        await made.shake_hands()
        yield made


class DirectConnection:
    """One connection past a stream, used as a `PortConnection`: one task at a time reads, and one writes.
    All methods raise CallError.
    """

    max_message = READ

    def __init__(self, connected: socket.socket, identity: bytes, stream: PortConnection) -> None:
        """Exchanges nothing before `shake_hands`; the socket stays the caller's to close."""
        self._socket = connected
        self._tls = TlsSocket(connected, tls_context(identity), NAME)
        self._stream = stream

    async def shake_hands(self) -> None:
        """Returns once both sides know each other."""
        try:
            await self._tls.shake_hands()
        except OSError as error:
            raise await self._broken() from error

    async def views(self) -> AsyncGenerator[memoryview, None]:
        """Yields what comes, until the other side ends; each is good until the next one is asked for."""
        try:
            async with contextlib.aclosing(self._tls.views()) as views:
                async for view in views:
                    yield view
        except OSError as error:
            raise await self._broken() from error

    async def write(self, data: bytes | memoryview) -> None:
        """Sends data; returns when it is sent, which may take until the other side reads."""
        try:
            await self._tls.write(data)
        except OSError as error:
            raise await self._broken() from error

    async def send_frame(self, frame: file_frames.Frame) -> None:
        """Sends a frame, where the port leads to files."""
        try:
            await file_frames.send(self._tls, frame)
        except OSError as error:
            raise await self._broken() from error

    async def frames(self) -> AsyncGenerator[file_frames.Frame, None]:
        """Yields the frames that come, until the other side ends. Raises FrameError as well."""
        try:
            async with contextlib.aclosing(file_frames.received(self._tls)) as frames:
                async for frame in frames:
                    yield frame
        except OSError as error:
            raise await self._broken() from error

    def abort(self) -> None:
        """Breaks the connection off."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def end_data(self) -> None:
        """Ends sending; received data may still be read."""
        try:
            await self._tls.end_data()
        except OSError as error:
            raise await self._broken() from error

    async def finish(self) -> None:
        """Waits until the other side has taken all that was sent; after `end_data`, and once nothing more comes."""
        await self._stream.finish()

    async def _broken(self) -> CallError:
        """Returns why the connection has ended, which the stream says."""
        try:
            async with asyncio.timeout(_REASON_SECONDS):
                await self._stream.finish()
        except CallError as error:
            return error
        except TimeoutError:
            pass
        return Aborted("the connection was reset", reason="CONNECTION_RESET")
