"""Connections of OpenSSH's clients to nodes: who lets them in, and which nodes are let alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from retinue.client.command.inside import ssh_socket
from retinue.client.kernel import direct_connection
from retinue.rpc import direct_port
from retinue.types.v1.port_pb2 import DirectPort
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TICKET = b"x" * 32


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A node that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.setblocking(False)
        yield found


def port_of(listening: socket.socket) -> DirectPort:
    return DirectPort(host="127.0.0.1", port=listening.getsockname()[1], ticket=TICKET)


async def answer(listening: socket.socket, byte: bytes) -> bytes:
    """Takes one connection, and answers its ticket, which is returned."""
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(listening)
    with connection:
        ticket = await loop.sock_recv(connection, 64)
        await loop.sock_sendall(connection, byte)
    return ticket


@pytest.mark.parametrize(("byte", "let_in"), [(b"\1", True), (b"\0", False), (b"", False)])
async def test_a_node_answers_a_ticket(listening: socket.socket, tmp_path: Path, byte: bytes, let_in: bool) -> None:
    ticket, connection = await asyncio.gather(
        answer(listening, byte), direct_connection.connect_to(port_of(listening), tmp_path)
    )
    assert ticket == TICKET
    assert (connection is not None) == let_in
    if connection is not None:
        connection.close()
    assert os.listdir(tmp_path) == []


async def test_a_node_that_does_not_answer_is_let_alone_for_a_while(
    listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_connection, "ADMIT_SECONDS", 0.01)
    assert await direct_connection.connect_to(port_of(listening), tmp_path) is None
    (silent,) = os.listdir(tmp_path)
    monkeypatch.setattr(direct_connection, "CONNECT_SECONDS", NEVER)
    monkeypatch.setattr(direct_connection, "ADMIT_SECONDS", NEVER)
    # It would be waited for.
    assert await direct_connection.connect_to(port_of(listening), tmp_path) is None
    os.utime(tmp_path / silent, (0, 0))
    # On a busy machine, time was up before it was connected.
    with contextlib.suppress(BlockingIOError):
        listening.accept()[0].close()
    _, connection = await asyncio.gather(
        answer(listening, b"\1"), direct_connection.connect_to(port_of(listening), tmp_path)
    )
    assert connection is not None
    connection.close()


async def test_a_node_that_was_reached_has_longer_to_answer(
    listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That its agent is busy is no reason to take the longer route."""
    connect, expired = direct_port.connect, asyncio.Event()

    async def connect_late(port: DirectPort, *, on_reached: Callable[[], object]) -> socket.socket:
        on_reached()
        # The limit for reaching it has passed.
        asyncio.get_running_loop().call_later(0.01, expired.set)
        await expired.wait()
        return await connect(port)

    monkeypatch.setattr(direct_port, "connect", connect_late)
    monkeypatch.setattr(direct_connection, "CONNECT_SECONDS", 0.005)
    monkeypatch.setattr(direct_connection, "ADMIT_SECONDS", NEVER)
    answering = asyncio.create_task(answer(listening, b"\1"))
    try:
        connection = await direct_connection.connect_to(port_of(listening), tmp_path)
    finally:
        answering.cancel()
    assert connection is not None
    connection.close()
    assert os.listdir(tmp_path) == []


async def test_a_closed_port_and_an_unknown_name_are_no_reason_to_wait(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = port_of(closed)
    assert await direct_connection.connect_to(port, tmp_path) is None
    assert await direct_connection.connect_to(DirectPort(host="", port=1, ticket=TICKET), tmp_path) is None
    assert os.listdir(tmp_path) == []


async def test_a_client_that_goes_before_it_has_its_socket_is_not_waited_for() -> None:
    client, ours = socket.socketpair()
    with ours:
        handover = ssh_socket.SocketHandover(-1, ours.fileno())
        with client:
            with handover.client_waits():
                await asyncio.sleep(0)
            opening = asyncio.create_task(wait_for_manager(handover))
            await asyncio.sleep(0)
        async with asyncio.timeout(NEVER):
            await opening


async def wait_for_manager(handover: ssh_socket.SocketHandover) -> None:
    """Waits for a manager that never answers."""
    with handover.client_waits():
        await asyncio.Event().wait()
