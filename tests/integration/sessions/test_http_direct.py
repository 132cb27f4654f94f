"""Bytes of browsers that pass neither manager nor agent: on their way to a kernel, when the right ends,
and when something else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import aiohttp
import pytest
import pytest_asyncio

from retinue.client.errors import CallError
from retinue.manager.gateway.core.connections import access_name
from retinue.manager.identity.tokens import hash_secret
from tests.integration.sessions.http_sessions import (
    PYTHON,
    Lose,
    agent_of,
    delete,
    opened,
    opened_directly,
    revoke,
    serving,
    status,
    stopped,
)
from tests.integration.sessions.web import browser
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        session = await serving(client)
        yield session
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


async def echo(connection: aiohttp.ClientWebSocketResponse, text: str) -> None:
    await connection.send_str(text)
    assert await connection.receive_str(timeout=NEVER) == f"echo {text!r}"


async def test_no_python_is_on_the_way_of_a_browser_that_was_let_in(session: Session, cluster: Cluster) -> None:
    agent = cluster.agents[await agent_of(cluster, session)]
    async with browser() as web:
        origin = await opened_directly(web, session, cluster)
        async with web.ws_connect(origin + "ws") as connection:
            async with stopped(cluster.manager.signal, agent.process.signal):
                await echo(connection, "on")
                assert (await status(web, origin + "another"))[0] == 200
                async with web.ws_connect(origin + "ws") as other:
                    await echo(other, "new")
            await echo(connection, "still")


async def read_all(answer: aiohttp.ClientResponse) -> None:
    async with asyncio.timeout(NEVER):
        while await answer.content.read(1 << 16):
            pass


async def test_open_connections_end_with_the_right_and_with_the_session(
    session: Session, client: Client, cluster: Cluster
) -> None:
    # Each takes as long as the slowest of its connections may, so beside each other.
    await asyncio.gather(
        connections_end_with_the_right(session, client, cluster, revoke),
        connections_end_with_the_right(session, client, cluster, delete),
        connections_end_with_the_session(client),
    )


async def connections_end_with_the_right(session: Session, client: Client, cluster: Cluster, lose: Lose) -> None:
    user = await client.users.create(f"direct-{lose.__name__}", role="admin")
    token = await client.tokens.create(user=user.name, description="direct")
    try:
        async with cluster.client(token.secret) as other, browser() as web, browser() as stays:
            origin = await opened(web, await other.sessions.get(session.id))
            await opened(stays, session)
            async with (
                web.ws_connect(origin + "ws") as idle,
                stays.ws_connect(origin + "ws") as own,
                web.get(origin + "endless") as busy,
            ):
                await busy.content.readexactly(10 << 20)
                await lose(client, user.name)
                assert (await idle.receive(timeout=NEVER)).type is not aiohttp.WSMsgType.TEXT
                with pytest.raises(aiohttp.ClientError):
                    await read_all(busy)
                assert (await status(web, origin))[0] == 401
                # Another browser at the same port has its own connections.
                await echo(own, "on")
    finally:
        with contextlib.suppress(Exception):
            await client.users.delete(user.name)


async def connections_end_with_the_session(client: Client) -> None:
    session = await serving(client)
    async with browser() as web:
        origin = await opened(web, session)
        async with web.ws_connect(origin + "ws") as idle, web.get(origin + "endless") as busy:
            await busy.content.readexactly(1 << 20)
            # Its kernel has minutes to end.
            await session.terminate()
            assert (await idle.receive(timeout=NEVER)).type is not aiohttp.WSMsgType.TEXT
            with pytest.raises(aiohttp.ClientError):
                await read_all(busy)
            assert (await session.refresh()).state == "TERMINATING"
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


async def test_connections_outlive_the_agent(session: Session, cluster: Cluster) -> None:
    index = await agent_of(cluster, session)
    async with browser() as web:
        origin = await opened_directly(web, session, cluster)
        async with web.ws_connect(origin + "ws") as connection:
            await cluster.agents[index].process.kill()
            await echo(connection, "without")
            await cluster.start_agent(index)
            await eventually(lambda: answers(session), lambda found: found, ignoring=CallError)
            await echo(connection, "with")
            # Until the port is leased again, the relay has the new ones.
            await eventually(lambda: status(web, origin), lambda found: found[0] == 200)


async def answers(session: Session) -> bool:
    """Whether the agent leads to the port."""
    async with session.open_port("web"):
        return True


ELSEWHERE = """
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.client_address[0].encode())
class Server(socketserver.ThreadingTCPServer):
    address_family = 10
    allow_reuse_address = True
Server(("::1", 8080), Handler).serve_forever()
"""


async def test_what_listens_where_no_leased_port_leads_is_reached_by_the_relay(client: Client) -> None:
    session = await client.sessions.create(
        type="interactive",
        command=[PYTHON, "-c", ELSEWHERE],
        slots={"cpu": "0.2", "mem": "64m"},
        termination_grace=0,
        ports=[("web", "http", 8080)],
    )
    try:
        await session.wait("RUNNING", timeout=NEVER)
        async with browser() as web:
            origin = await opened(web, session)
            await eventually(lambda: status(web, origin), lambda found: found == (200, "::1"))
    finally:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


async def test_no_header_of_a_client_chooses_where_its_request_goes(session: Session, client: Client) -> None:
    other = await serving(client)
    try:
        async with browser() as web, browser() as victim:
            origin, beside = await opened(web, session), await opened(victim, other)
            assert (await status(victim, beside))[0] == 200
            [secret] = [morsel.value for morsel in victim.cookie_jar if morsel.key == "retinue"]
            for sent in (
                {"X-Retinue-Cluster": access_name(hash_secret(secret))},
                # Asked about, and let in at its own port.
                {
                    "X-Retinue-Cluster": access_name(hash_secret(secret)),
                    "Sec-Fetch-Site": "cross-site",
                    "Sec-Fetch-Mode": "navigate",
                    "Sec-Fetch-Dest": "document",
                },
            ):
                async with web.get(origin, headers=sent) as answer:
                    came = dict(json.loads(await answer.read())["headers"])
                    assert came["Host"] in origin
                    assert "X-Retinue-Cluster" not in came
            async with browser() as stranger:
                assert (await status(stranger, beside, headers=sent))[0] == 401
                # The cookie of one port is none at another.
                cookie = {"Cookie": f"retinue={secret}"}
                assert (await status(stranger, origin, headers=cookie))[0] == 401
    finally:
        await other.terminate(force=True)
        await other.wait_ended(NEVER)
