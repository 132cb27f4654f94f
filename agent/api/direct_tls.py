"""Connections to a direct port that are encrypted by TLS: their identities, and how their bytes are carried."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from retinue.rpc.acknowledgements import Acknowledgements
from retinue.rpc.sockets import receive_available
from retinue.rpc.tls_socket import NAME, READ, TlsSocket, tls_context

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CONNECTIONS = 32
"""At a time; each holds about a mebibyte."""
HANDSHAKE_SECONDS = 10.0
# Clocks of clients may be wrong by as much; the identity is good for one connection anyway.
_VALID = dt.timedelta(days=2)


def new_identity() -> bytes:
    """Returns a key and its certificate, in PEM."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)


async def accepted(outside: socket.socket, identity: bytes, moved: Callable[[int], None]) -> TlsSocket:
    """Returns the server's side of a connection once the client has the identity; `moved` is called with numbers of
    bytes that come and go. Raises OSError.
    """
    outside.setblocking(False)
    tls = TlsSocket(outside, tls_context(identity, server=True), None, moved)
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await tls.shake_hands()
    except TimeoutError as error:
        raise ConnectionResetError("the client has begun no TLS") from error
    return tls


async def carry_tls(tls: TlsSocket, inside: socket.socket) -> None:
    """Carries bytes between TLS and a socket that does not block, until both directions have ended.
    Raises OSError when one of them was reset, once all that the socket said is sent.
    """
    carried = _Carried(tls, inside)
    both = [asyncio.ensure_future(carried.take_in()), asyncio.ensure_future(carried.send_out())]
    try:
        await asyncio.gather(*both)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


class _Carried:
    """The two directions of one connection."""

    def __init__(self, tls: TlsSocket, inside: socket.socket) -> None:
        self._tls = tls
        self._inside = inside
        self._confirmed = Acknowledgements()
        # What the socket takes no more, while what it says may still be of use; and that it says no more.
        self._refusal: OSError | None = None
        self._all_said = False

    async def take_in(self) -> None:
        loop = asyncio.get_running_loop()
        async with contextlib.aclosing(self._tls.views()) as views:
            async for view in views:
                if self._refusal is not None:
                    # What nobody has read when a connection is closed would take back what was sent.
                    continue
                try:
                    await loop.sock_sendall(self._inside, view)
                except OSError as error:
                    if self._all_said:
                        raise
                    self._refusal = error
                self._confirmed.carried(len(view))
        with contextlib.suppress(OSError):
            self._inside.shutdown(socket.SHUT_WR)

    async def send_out(self) -> None:
        loop, room = asyncio.get_running_loop(), memoryview(bytearray(READ))
        while count := await loop.sock_recv_into(self._inside, room):
            await self._confirmed.gather(count, len(room))
            count = receive_available(self._inside, room, count)
            await self._tls.write(room[:count])
        await self._tls.end_data()
        self._all_said = True
        if self._refusal is not None:
            raise self._refusal
