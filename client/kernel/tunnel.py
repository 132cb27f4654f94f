"""A connection to a port of a session past the manager: TLS through its gateway,
whose engine passes the bytes on to the node without Python.

One key with one certificate serves both ends of a tunnel: who has the key is let in, and is the gateway. Each direction
ends by itself, which sockets of Python's `ssl` cannot say and its objects on memory can.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
from typing import TYPE_CHECKING, Self

from retinue.client.errors import Aborted, CallError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

# Of one read, which is decrypted as a whole, with the record that the one before ended in.
_READ, _RECORD = 256 << 10, 32 << 10
_HANDSHAKE_READ = 16 << 10
# Between the end of a direction and that of the connection, when both come from Envoy at once.
_GRACE_SECONDS = 0.05


def tunnel_context(identity: bytes) -> ssl.SSLContext:
    """Returns the context for a key and its certificate, in PEM. Raises ssl.SSLError, OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=identity.decode("ascii"))
    # OpenSSL reads keys from files only.
    with tempfile.NamedTemporaryFile() as file:
        file.write(identity)
        file.flush()
        context.load_cert_chain(file.name)
    return context


class TunnelConnection:
    """One connection, used as a `PortConnection`: one task at a time reads, and one writes.
    All methods but `connect` raise CallError.
    """

    max_message = _READ

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """See `connect`."""
        self._socket = connected
        self._came, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._going, server_hostname=name)
        self._own_end = False
        self.received: bool = False
        self._room = memoryview(bytearray(_READ + _RECORD))

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
            await made._shake_hands()
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
        loop = asyncio.get_running_loop()
        raw = memoryview(bytearray(_READ))
        while True:
            count, ended = self._decrypted()
            if count:
                self.received = True
                yield self._room[:count]
            if ended:
                await self._check_end()
                return
            try:
                taken = await loop.sock_recv_into(self._socket, raw)
            except OSError as error:
                raise _broken(error) from error
            if not taken:
                raise _broken("it ended without saying so")
            self._came.write(raw[:taken])

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

    def _decrypted(self) -> tuple[int, bool]:
        """Decrypts all that has come: how many bytes, and whether the other side has ended.

        Nothing but a part of a record is left: TLS takes no end of the other direction before data that is not read.
        """
        count: int = 0
        # A record each time: thousands for every second of a large answer.
        read, room, size = self._tls.read, self._room, len(self._room)
        try:
            while taken := read(size - count, room[count:]):
                count += taken  # type: ignore[operator]  # into a buffer, it returns the number of bytes
        except ssl.SSLWantReadError:
            return count, False
        except ssl.SSLZeroReturnError:
            return count, True
        except ssl.SSLError as error:
            raise _broken(error) from error
        return count, True

    async def write(self, data: bytes | memoryview) -> None:
        """Sends data; returns when it is sent, which may take until the other side reads."""
        try:
            self._tls.write(data)
            await self._flush()
        except OSError as error:
            raise _broken(error) from error

    async def end_data(self) -> None:
        """Ends sending; received data may still be read."""
        self._own_end = True
        try:
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLSyscallError):
                self._tls.unwrap()
            await self._flush()
        except OSError as error:
            raise _broken(error) from error

    async def finish(self) -> None:
        """Returns: what was sent is the machine's to deliver."""

    async def _flush(self) -> None:
        if data := self._going.read():
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def _shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await loop.sock_recv(self._socket, _HANDSHAKE_READ)
                if not data:
                    raise ConnectionResetError("the gateway has no such tunnel") from None
                self._came.write(data)
            else:
                await self._flush()
                return


def _broken(why: object) -> CallError:
    if isinstance(why, ConnectionResetError):
        return Aborted("the connection was reset", reason="CONNECTION_RESET")
    return Unavailable(f"the connection broke: {why}")
