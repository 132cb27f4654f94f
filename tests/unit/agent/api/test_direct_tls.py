"""Bytes between TLS and a socket: what a program said before it was gone arrives, whatever it takes no more."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from retinue.agent.api.direct_tls import accepted, carry_tls, new_identity
from retinue.rpc.tls_socket import NAME, TlsSocket, tls_context
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

# No more than the receiving socket holds.
SAID = bytes(range(256)) * 64


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection of TCP, which do not block."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as one:
        one.connect(listening.getsockname())
        with listening.accept()[0] as other:
            one.setblocking(False)
            other.setblocking(False)
            yield one, other


async def test_what_was_said_arrives_although_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    identity, loop = new_identity(), asyncio.get_running_loop()
    refused, write = asyncio.Event(), TlsSocket.write
    with pair() as (client, outside), pair() as (inside, program):
        tls = TlsSocket(client, tls_context(identity), NAME)
        server, _ = await asyncio.gather(accepted(outside, identity, lambda _: None), tls.shake_hands())
        async with asyncio.timeout(NEVER):
            await loop.sock_sendall(program, SAID)
            # It has said all, and is gone: whatever comes to it is answered with a reset.
            program.close()
            inside.send(b"x")
            await _reset(inside)
            await tls.write(b"more")

            async def write_late(*parts: bytes | memoryview) -> None:
                """What was refused is known by then."""
                await refused.wait()
                await write(server, *parts)

            monkeypatch.setattr(server, "write", write_late)
            came_in = asyncio.Event()
            monkeypatch.setattr(server, "_moved", lambda _: came_in.set())
            carrying = asyncio.create_task(carry_tls(server, inside))
            await came_in.wait()
            await asyncio.wait({carrying}, timeout=0.1)
            refused.set()
            came = bytearray()
            with contextlib.suppress(ConnectionAbortedError):
                async with contextlib.aclosing(tls.views()) as views:
                    while len(came) < len(SAID):
                        came += await anext(views)
            assert bytes(came) == SAID
            await tls.end_data()
            with pytest.raises(OSError, match=r"."):
                await carrying


async def _reset(connection: socket.socket) -> None:
    """Waits until writing fails, which takes nothing of what can be read."""
    while True:
        try:
            connection.send(b"x")
        except OSError:
            return
        await asyncio.sleep(0)


async def test_each_direction_ends_by_itself() -> None:
    identity, loop = new_identity(), asyncio.get_running_loop()
    with pair() as (client, outside), pair() as (inside, program):
        tls = TlsSocket(client, tls_context(identity), NAME)
        server, _ = await asyncio.gather(accepted(outside, identity, lambda _: None), tls.shake_hands())
        async with asyncio.timeout(NEVER):
            carrying = asyncio.create_task(carry_tls(server, inside))
            await tls.write(SAID)
            await tls.end_data()
            taken = bytearray()
            while data := await loop.sock_recv(program, 1 << 20):
                taken += data
            assert bytes(taken) == SAID
            await loop.sock_sendall(program, b"after")
            program.close()
            async with contextlib.aclosing(tls.views()) as views:
                assert b"".join([bytes(view) async for view in views]) == b"after"
            await carrying
