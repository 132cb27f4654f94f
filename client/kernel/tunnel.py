"""A connection to a port of a session past the manager: TLS through its gateway,
whose engine passes the bytes on to the node without Python.

One key with one certificate serves both ends of a tunnel: who has the key is let in, and is the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Self

from retinue.client.errors import Aborted, CallError, Unavailable
from retinue.rpc.tls_socket import READ, TlsSocket

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from types import TracebackType

# Between the end of a direction and that of the connection, when both come from Envoy at once.
_GRACE_SECONDS = 0.05


class TunnelConnection:
    """One connection, used as a `PortConnection`: one task at a time reads, and one writes.
    All methods but `connect` raise CallError.
    """

    max_message = READ

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """See `connect`."""
        self._socket = connected
        self._tls = TlsSocket(connected, context, name)
        self._own_end = False
        self.received: bool = False

    @classmethod
    async def connect(cls, address: tuple[str, int], name: str, context: ssl.SSLContext) -> Self:
        """Connects to a gateway, and there to the tunnel of that name. Raises OSError, of which ssl.SSLError is one."""
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        connected = socket.socket(family, socket.SOCK_STREAM)
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connected, address)
            made = cls(connected, context, name)
            await made._tls.shake_hands()
        except BaseException:
            connected.close()
            raise
        return made

    async def __aenter__(self) -> Self:
        """Returns itself, which is connected."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self._socket.close()

    async def views(self) -> AsyncIterator[memoryview]:
        """Yields what comes, until the other side ends; each is good until the next one is asked for."""
        try:
            async with contextlib.aclosing(self._tls.views()) as views:
                async for view in views:
                    self.received = True
                    yield view
        except OSError as error:
            raise _broken(error) from error
        await self._check_end()

    async def _check_end(self) -> None:
        """Raises Aborted when the whole connection has ended: a program that ends its
        direction leaves the other one open.

        Of a connection whose other direction has ended, this is not known.
        """
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await asyncio.get_running_loop().sock_recv(self._socket, 1)
        except TimeoutError:
            return
        except OSError as error:
            raise _broken(error) from error
        if not self._own_end:
            raise _broken(ConnectionResetError())

    async def write(self, data: bytes | memoryview) -> None:
        """Sends data; returns when it is sent, which may take until the other side reads."""
        try:
            await self._tls.write(data)
        except OSError as error:
            raise _broken(error) from error

    async def end_data(self) -> None:
        """Ends sending; received data may still be read."""
        self._own_end = True
        try:
            await self._tls.end_data()
        except OSError as error:
            raise _broken(error) from error

    async def finish(self) -> None:
        """Returns: what was sent is the machine's to deliver."""


def _broken(error: OSError) -> CallError:
    if isinstance(error, ConnectionResetError):
        return Aborted("the connection was reset", reason="CONNECTION_RESET")
    return Unavailable(f"the connection broke: {error}")
