"""Sessions whose programs listen at ports, and what comes back from these."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.client.errors import CallError
from retinue.client.kernel.port import MAX_MESSAGE_BYTES, PortConnection
from tests.integration.sessions import port_server
from tests.integration.sessions.inside import until_printed
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from retinue.client.client import Client
    from retinue.client.sessions import Session

PORTS = [
    ("echo", "tcp", port_server.ECHO),
    ("digest", "tcp", port_server.DIGEST),
    ("deaf", "tcp", port_server.DEAF),
    ("endless", "tcp", port_server.ENDLESS),
    ("reset", "http", port_server.RESET),
    ("closed", "tcp", 7999),
]
PROGRAM = Path(port_server.__file__).read_text()
_ROUNDS = 10


async def serving(client: Client, **options: Any) -> Session:
    """Returns a session whose main kernel listens."""
    session = await client.sessions.create(
        **{
            "type": "interactive",
            "command": ["python3", "-c", PROGRAM],
            "slots": {"cpu": "0.5", "mem": "256m"},
            "termination_grace": 0,
            "ports": PORTS,
            "preopen_ports": [(7006, 7010)],
            **options,
        }
    )
    await session.wait("RUNNING", timeout=NEVER)
    await until_printed(session, b"listening")
    return session


async def whole(connection: PortConnection) -> bytes:
    """Returns all that comes."""
    async with asyncio.timeout(NEVER):
        return b"".join([data async for data in connection])


async def said(session: Session, port: str | int, data: bytes = b"hello") -> bytes:
    """Returns what a port answers to these bytes and their end."""
    async with session.open_port(port) as connection:
        await connection.write(data)
        await connection.end_data()
        return await whole(connection)


@contextlib.asynccontextmanager
async def stuffed(*connections: PortConnection, another: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Connections that take no more, while more waits to be written to each of them.

    `another` passes through the same processes and comes back. What could be taken is taken meanwhile: when nothing
    was in many of these rounds, nothing will be.
    """
    taken = 0

    async def write(connection: PortConnection) -> None:
        nonlocal taken
        # Whatever ends the connection, its responses tell.
        with contextlib.suppress(CallError):
            while True:
                await connection.write(bytes(MAX_MESSAGE_BYTES))
                taken += 1

    writing = [asyncio.create_task(write(connection)) for connection in connections]
    try:
        before = -1
        while before < taken:
            before = taken
            for _ in range(_ROUNDS):
                await another()
        assert not [task for task in writing if task.done()]
        yield
    finally:
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
