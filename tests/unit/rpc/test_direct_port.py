"""Direct connections: who is let in, what is carried, and what holds them up."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from retinue.rpc import direct_port
from retinue.rpc.direct_port import ADMITTED, DirectPorts, carry
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from retinue.rpc.direct_port import Offer


@contextlib.asynccontextmanager
async def offering() -> AsyncIterator[tuple[DirectPorts, Offer]]:
    """A port at the loopback, and an offer that admits who comes."""
    ports = DirectPorts()
    ports.open("127.0.0.1", 0)
    try:
        with ports.offer(True) as offer:
            assert offer is not None
            offer.arrival.add_done_callback(lambda arrival: arrival.cancelled() or offer.admit())
            yield ports, offer
    finally:
        await ports.close()


async def answer(port: int, ticket: bytes) -> bytes:
    """Returns all that comes to who sends this first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(ticket)
        async with asyncio.timeout(NEVER):
            with contextlib.suppress(ConnectionError):
                return await reader.read(1)
        return b""
    finally:
        writer.close()


async def test_a_ticket_is_good_once() -> None:
    async with offering() as (ports, offer):
        assert await answer(ports.port, bytes(32)) == b""
        assert await answer(ports.port, offer.port.ticket) == ADMITTED
        async with asyncio.timeout(NEVER):
            await offer.arrival
        assert await answer(ports.port, offer.port.ticket) == b""


async def test_a_ticket_ends_with_its_offer() -> None:
    async with offering() as (ports, offer):
        with ports.offer(True) as ended:
            assert ended is not None
        assert await answer(ports.port, ended.port.ticket) == b""
        assert not offer.arrival.done()


async def test_nothing_is_offered_unasked_or_before_it_listens() -> None:
    ports = DirectPorts()
    with ports.offer(True) as offer:
        assert offer is None
    ports.open("127.0.0.1", 0)
    with ports.offer(False) as offer:
        assert offer is None
    await ports.close()


@pytest.mark.attack("silent-ssh-connections")
async def test_connections_without_a_ticket_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_port, "MAX_WAITING", 2)
    async with offering() as (ports, offer), contextlib.AsyncExitStack() as stack:
        silent = [await asyncio.open_connection("127.0.0.1", ports.port) for _ in range(3)]
        for _, writer in silent:
            stack.callback(writer.close)
        async with asyncio.timeout(NEVER):
            # One too many: closed at once, while the others have time.
            await asyncio.wait(
                [asyncio.ensure_future(reader.read(1)) for reader, _ in silent], return_when="FIRST_COMPLETED"
            )
            for _, writer in silent:
                writer.close()
            while await answer(ports.port, offer.port.ticket) != ADMITTED:
                pass


@pytest.mark.attack("silent-ssh-connections")
async def test_who_says_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_port, "TICKET_SECONDS", 0.01)
    async with offering() as (ports, _):
        assert await answer(ports.port, b"") == b""


@pytest.fixture
def pairs() -> Iterator[list[socket.socket]]:
    """The ends of two connections: outer, its other end, the other end of the inner one, inner."""
    found = [*socket.socketpair(), *socket.socketpair()]
    for one in found:
        one.setblocking(False)
    yield found
    for one in found:
        one.close()


async def test_bytes_and_ends_are_carried_both_ways(pairs: list[socket.socket]) -> None:
    outer, outside, inside, inner = pairs
    content, moved = os.urandom(5 << 20), 0

    def count(more: int) -> None:
        nonlocal moved
        moved += more

    async def read(connection: socket.socket) -> bytes:
        digest, loop = hashlib.sha256(), asyncio.get_running_loop()
        while piece := await loop.sock_recv(connection, 1 << 16):
            digest.update(piece)
        return digest.digest()

    async def write(connection: socket.socket, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(connection, data)
        connection.shutdown(socket.SHUT_WR)

    async with asyncio.timeout(NEVER):
        found = await asyncio.gather(
            carry(outside, inside, count), read(inner), read(outer), write(outer, content), write(inner, content[::-1])
        )
    assert found[1:3] == [hashlib.sha256(content).digest(), hashlib.sha256(content[::-1]).digest()]
    assert moved == 2 * len(content)


async def test_a_reset_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, contextlib.ExitStack() as stack:
        outer = socket.create_connection(listening.getsockname())
        outside, (inside, inner) = listening.accept()[0], socket.socketpair()
        for one in (outside, inside, inner):
            stack.enter_context(one).setblocking(False)
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        outer.close()
        with pytest.raises(OSError):  # noqa: PT011  # which one depends on what is done first
            async with asyncio.timeout(NEVER):
                await carry(outside, inside, lambda _: None)
