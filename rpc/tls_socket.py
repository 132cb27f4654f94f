"""A TCP connection with TLS whose two sides know each other by one key with one certificate, which both have.

Each direction ends by itself, which sockets of Python's `ssl` cannot say and its objects on memory can.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Callable

NAME = "direct.retinue"
"""Name in the identities of direct ports."""
READ = 256 << 10
"""Bytes of one read, which is decrypted as a whole, and of the largest write that is worth while."""
# What the record takes that the read before ended in.
_RECORD = 32 << 10
_HANDSHAKE_READ = 16 << 10


def tls_context(identity: bytes, *, server: bool = False) -> ssl.SSLContext:
    """Returns the context of a side for a key and its certificate, in PEM. Raises ssl.SSLError, OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.decode("ascii"))
    if server:
        # No connection is resumed.
        context.num_tickets = 0
    # OpenSSL reads keys from files only.
    with tempfile.NamedTemporaryFile() as file:
        file.write(identity)
        file.flush()
        context.load_cert_chain(file.name)
    return context


class TlsSocket:
    """TLS over a connected socket that does not block, and that stays the caller's to close: one task at a time reads,
    and one writes.
    """

    def __init__(
        self,
        connected: socket.socket,
        context: ssl.SSLContext,
        name: str | None,
        moved: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Exchanges nothing before `shake_hands`. `name` is the server's; None: this is the server. `moved` is called
        with numbers of bytes that came or were sent.
        """
        self._socket = connected
        self._moved = moved
        self._came, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._going, server_side=name is None, server_hostname=name)
        self._room = memoryview(bytearray(READ + _RECORD))
        self._raw = memoryview(bytearray(READ))

    async def shake_hands(self) -> None:
        """Returns once both sides know each other. Raises OSError, of which ssl.SSLError is one."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await loop.sock_recv(self._socket, _HANDSHAKE_READ)
                if not data:
                    raise ConnectionResetError("the other side has no such identity") from None
                self._came.write(data)
            else:
                await self._flush()
                return

    async def views(self) -> AsyncGenerator[memoryview, None]:
        """Yields what comes, until the other side ends; each is good until the next one is asked for.
        Raises OSError when the connection ends without that.
        """
        while True:
            # Nothing but a part of a record is left: TLS takes no end of the other direction before data that is not
            # read.
            count, ended = self._decrypted(self._room)
            if count:
                yield self._room[:count]
            if ended:
                return
            await self._receive()

    async def fill(self, room: memoryview) -> int:
        """Reads until there is no more room; returns how many bytes, fewer when the other side has ended before.
        Not beside `views`. Raises OSError when the connection ends without that.
        """
        count = 0
        while count < len(room):
            more, ended = self._decrypted(room[count:])
            count += more
            if ended:
                break
            if count < len(room):
                await self._receive()
        return count

    async def _receive(self) -> None:
        taken = await asyncio.get_running_loop().sock_recv_into(self._socket, self._raw)
        if not taken:
            raise ConnectionAbortedError("it ended without saying so")
        self._came.write(self._raw[:taken])
        self._moved(taken)

    def _decrypted(self, room: memoryview) -> tuple[int, bool]:
        """Decrypts what has come, as far as there is room: how many bytes, and whether the other side has ended."""
        count: int = 0
        # A record each time: thousands for every second of a large answer.
        read, size = self._tls.read, len(room)
        try:
            while count < size:
                taken = read(size - count, room[count:])
                if not taken:
                    return count, True
                count += taken  # type: ignore[operator]  # into a buffer, it returns the number of bytes
        except ssl.SSLWantReadError:
            return count, False
        except ssl.SSLZeroReturnError:
            return count, True
        return count, False

    async def write(self, *parts: bytes | memoryview) -> None:
        """Sends data; returns when it is sent, which may take until the other side reads. Raises OSError."""
        for part in parts:
            if part:
                self._tls.write(part)
        await self._flush()

    async def end_data(self) -> None:
        """Ends sending; received data may still be read. Raises OSError."""
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLSyscallError):
            self._tls.unwrap()
        await self._flush()

    async def _flush(self) -> None:
        if data := self._going.read():
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
            self._moved(len(data))
