"""Clients of a session's port that take their time, by a local port in both of its ways and by the gateway: every byte
reaches them, and the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from yarl import URL

from retinue.client.command.inside.tunnelled_port import TunnelledPort
from retinue.client.kernel.port import LocalPort
from tests.integration.proxy import slow_clients
from tests.integration.proxy.edges import Edge
from tests.integration.proxy.slow_clients import ANSWERS, BODY, READING, REQUESTS, WRITING, body_of, fetch, send
from tests.integration.sessions.http_sessions import opened
from tests.integration.sessions.inside import until_printed
from tests.integration.sessions.web import browser
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROGRAM = f"""
import asyncio, hashlib, random
BODY = random.Random({slow_clients.SEED}).randbytes({slow_clients.SIZE})
OK = b"HTTP/1.1 200 OK\\r\\n"
def answer(path):
    if path == "/":
        return OK + b"Content-Length: 2\\r\\n\\r\\nhi"
    if path == "/sized":
        return OK + b"Content-Length: %d\\r\\n\\r\\n" % len(BODY) + BODY
    if path == "/chunked":
        pieces = [BODY[at:at + {slow_clients.PIECE}] for at in range(0, len(BODY), {slow_clients.PIECE})]
        body = b"".join(b"%x\\r\\n" % len(piece) + piece + b"\\r\\n" for piece in pieces)
        return OK + b"Transfer-Encoding: chunked\\r\\n\\r\\n" + body + b"0\\r\\n\\r\\n"
    return OK + b"Connection: close\\r\\n\\r\\n" + BODY
async def digest(head, reader):
    found = hashlib.sha256()
    if b"chunked" in head:
        while size := int(await reader.readline(), 16):
            found.update(await reader.readexactly(size))
            await reader.readline()
    else:
        found.update(await reader.readexactly(len(BODY)))
    said = found.hexdigest().encode()
    return OK + b"Content-Length: %d\\r\\n\\r\\n" % len(said) + said
async def serve(reader, writer):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    method, path = head.decode("latin-1").split(" ")[:2]
    writer.write(await digest(head.lower(), reader) if method == "PUT" else answer(path))
    await writer.drain()
    writer.close()
async def main():
    await asyncio.start_server(serve, "127.0.0.1", 8080)
    print("listening", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        found = await client.sessions.create(
            type="interactive",
            command=["python3", "-c", PROGRAM],
            slots={"cpu": "0.5", "mem": "512m"},
            termination_grace=0,
            ports=[("web", "http", 8080)],
        )
        await found.wait("RUNNING", timeout=NEVER)
        await until_printed(found, b"listening")
        yield found
        await found.terminate(force=True)
        await found.wait_ended(NEVER)


@contextlib.asynccontextmanager
async def all_ways(session: Session, cluster: Cluster) -> AsyncIterator[list[Edge]]:
    tunnelled = TunnelledPort(session, "web", cluster.settings.endpoint).connect
    async with (
        LocalPort(tunnelled) as tunnel,
        LocalPort(lambda: session.open_port("web")) as stream,
        browser() as web,
    ):
        origin = await opened(web, session)
        parts = urlsplit(origin)
        [cookie] = web.cookie_jar.filter_cookies(URL(origin)).values()
        access = f"Cookie: {cookie.key}={cookie.value}\r\n".encode()
        yield [
            Edge("tunnel", tunnel.address[1], "127.0.0.1"),
            Edge("stream", stream.address[1], "127.0.0.1"),
            Edge("gateway", parts.port or 80, parts.netloc, access),
        ]


async def test_slow_readers_get_every_byte(session: Session, cluster: Cluster) -> None:
    async with all_ways(session, cluster) as ways:
        kinds = list(itertools.product(ANSWERS, REQUESTS.items(), READING.items()))
        clients = [(edge, *kind) for edge in ways for kind in kinds]
        async with asyncio.timeout(NEVER):
            answers = await asyncio.gather(
                *(fetch(edge, name, one, rhythm) for edge, name, (_, one), (_, rhythm) in clients)
            )
        cut = [
            (edge.name, name, request, rhythm, len(BODY) - len(body_of(answer)))
            for (edge, name, (request, _), (rhythm, _)), answer in zip(clients, answers, strict=True)
            if body_of(answer) != BODY
        ]
        assert not cut


async def test_a_local_port_is_half_closed_as_any_other(session: Session, cluster: Cluster) -> None:
    async with all_ways(session, cluster) as ways:
        local = [edge for edge in ways if edge.name != "gateway"]
        for edge, name in itertools.product(local, ANSWERS):
            async with asyncio.timeout(NEVER):
                answer = await fetch(edge, name, REQUESTS["that closes"], [(0, 0.2)], half_closed=True)
            assert body_of(answer) == BODY, (edge.name, name)


async def test_the_program_gets_every_byte_of_slow_writers(session: Session, cluster: Cluster) -> None:
    async with all_ways(session, cluster) as ways:
        clients = list(itertools.product(ways, WRITING.items(), (False, True)))
        async with asyncio.timeout(NEVER):
            answers = await asyncio.gather(
                *(send(edge, "/", rhythm, chunked=chunked) for edge, (_, rhythm), chunked in clients)
            )
        whole = hashlib.sha256(BODY).hexdigest().encode()
        cut = [
            (edge.name, rhythm, chunked, answer)
            for (edge, (rhythm, _), chunked), answer in zip(clients, answers, strict=True)
            if body_of(answer) != whole
        ]
        assert not cut
