"""Connections without calls are closed, so that file descriptors remain for those in use."""

from __future__ import annotations

import asyncio

import grpc.aio

from retinue.client import channel
from retinue.manager.listeners import IDLE_SECONDS, SERVER_OPTIONS
from tests.support.eventually import NEVER

# As a client of HTTP/2 begins: the preface, and empty settings.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
# The kind of the frame by which a server begins to close a connection.
GOAWAY = 7
IDLE = "grpc.max_connection_idle_ms"


async def test_a_connection_without_a_call_ends() -> None:
    options = dict(SERVER_OPTIONS)
    assert options[IDLE] == 1000 * IDLE_SECONDS
    server = grpc.aio.server(options=tuple((options | {IDLE: 200}).items()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HELLO)
        async with asyncio.timeout(NEVER):
            kind = 0
            while kind != GOAWAY:
                *length, kind = (await reader.readexactly(9))[:4]
                await reader.readexactly(int.from_bytes(bytes(length)))
        writer.close()
    finally:
        await server.stop(0)


def test_the_client_closes_an_idle_connection_before_the_manager_does() -> None:
    assert 2 * channel.IDLE_SECONDS < IDLE_SECONDS
