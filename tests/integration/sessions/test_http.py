"""HTTP to ports of kernels, from a client with a ticket through the gateway,
the manager and the agent to a program and back.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
import pytest_asyncio

from retinue.client.errors import FailedPrecondition, InvalidRequest, NotFound
from tests.integration.sessions import http_server
from tests.integration.sessions.http_sessions import engines, log_of, opened, serving, status
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


@pytest.mark.attack("tickets-of-ports", "secrets-in-logs")
async def test_a_ticket_is_good_once_and_at_its_address_only(session: Session, cluster: Cluster) -> None:
    ticket = await session.create_port_ticket("web", "/tree?a=1")
    async with browser() as web, browser() as other:
        code, page = await status(web, ticket.origin)
        assert (code, "retinue open SESSION PORT" in page) == (401, True)
        elsewhere = (await session.create_port_ticket("closed")).origin + ticket.url.partition("/.")[2]
        assert (await status(other, elsewhere.replace("retinue/open", ".retinue/open")))[0] == 403
        # Neither what looks ahead nor what only asks for the head uses it up.
        assert (await status(web, ticket.url, headers={"Sec-Purpose": "prefetch;prerender"}))[0] == 503
        async with web.head(ticket.url) as answer:
            assert answer.status == 405
        async with web.get(ticket.url) as answer:
            assert (answer.status, answer.url.path_qs) == (200, "/tree?a=1")
            assert json.loads(await answer.read())["path"] == "/tree?a=1"
            given = answer.history[0].headers
        assert (given["Cache-Control"], given["Referrer-Policy"]) == ("no-store", "no-referrer")
        assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(given["Set-Cookie"].split("; "))
        assert (await status(other, ticket.url))[0] == 403
        assert (await status(other, ticket.origin))[0] == 401
        assert (await status(other, ticket.origin + ".retinue/else"))[0] == 404
        assert (await status(web, ticket.origin))[0] == 200
    log = await asyncio.to_thread(log_of, cluster)
    assert "rtt_" not in log
    assert "rta_" not in log


@pytest.mark.attack("pages-of-ports")
async def test_the_program_sees_its_own_cookies_only(session: Session) -> None:
    async with browser() as web:
        origin = await opened(web, session)
        async with web.get(
            origin + "a/..;/%2e%2e//b", headers={"X-Retinue-Socket": "x", "X-Retinue-Host": "y"}
        ) as answer:
            came = dict(json.loads(await answer.read())["headers"])
            # No cookie of a program's is for other hosts of the domain.
            assert answer.headers["Set-Cookie"] == "own=1; Path=/; HttpOnly"
        # As browsers read it, and as attackers write it.
        spellings = (
            ("a=1; Domain=x.example; Path=/", "a=1; Path=/"),
            ("b=1;domain=x.example", "b=1"),
            ("c=1; Domain =x", "c=1"),
            ("d=1;\tDOMAIN \t= x ;Secure", "d=1;Secure"),
            ("domain=1; Path=/domain=2", "domain=1; Path=/domain=2"),
        )
        async with web.get(origin, params=[("cookie", set_) for set_, _ in spellings]) as answer:
            given = answer.headers.getall("Set-Cookie")
            assert given == ["own=1; Path=/; HttpOnly", *(passed_on for _, passed_on in spellings)]
        assert came["Cookie"] == "own=1"
        assert [name for name in came if name.lower().startswith(("x-retinue-", "x-envoy-"))] == []
        host = origin.removeprefix("http://").strip("/")
        assert (came["Host"], came["X-Forwarded-Host"], came["X-Forwarded-Proto"]) == (host, host, "http")
        web.cookie_jar.clear(lambda morsel: morsel.key != "retinue")
        async with web.get(origin) as answer:
            assert "Cookie" not in dict(json.loads(await answer.read())["headers"])
        async with web.post(origin, data=io.BytesIO(bytes(5 << 20))) as answer:
            assert await answer.read() == b"%d" % (5 << 20)


async def test_a_program_may_see_requests_as_those_of_its_own_machine(session: Session) -> None:
    own = f"localhost:{http_server.LOCAL_PORT}"
    async with browser() as web:
        ticket = await session.create_port_ticket("local")
        async with web.get(ticket.url, allow_redirects=False) as answer:
            assert answer.status == 303
        page = {"Origin": ticket.origin.strip("/")}
        # The first request is asked about, and those of the browser after it are not.
        for headers in (page, page, {}):
            async with web.get(ticket.origin, headers=headers) as answer:
                assert answer.status == 200
                came = dict(json.loads(await answer.read())["headers"])
            assert came["Host"] == own
            assert came["X-Forwarded-Host"] == ticket.origin.removeprefix("http://").strip("/")
            assert came.get("Origin") == (f"http://{own}" if headers else None)
        async with web.ws_connect(ticket.origin + "own", origin=ticket.origin.strip("/")) as connection:
            await connection.send_str("hello")
            assert await connection.receive_str(timeout=NEVER) == "own 'hello'"
        # The gateway looks at where a page is from before that.
        assert (await status(web, ticket.origin, headers={"Origin": f"http://{own}"}))[0] == 403
    [declared] = [port for port in (await session.refresh()).view.spec.service_ports if port.name == "local"]
    assert declared.host == "localhost"


@pytest.mark.attack("pages-of-ports")
async def test_websockets_need_the_cookie_and_the_origin(session: Session) -> None:
    async with browser() as web, browser() as stranger:
        origin = await opened(web, session)
        async with web.ws_connect(origin + "ws", origin=origin.strip("/")) as connection:
            await connection.send_str("hello")
            assert await connection.receive_str(timeout=NEVER) == "echo 'hello'"
        for client, source, code in (
            (stranger, origin.strip("/"), 401),
            (web, "https://evil.example", 403),
            (web, origin.strip("/").replace(f"p{http_server.PORT}-", "p8081-"), 403),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.ws_connect(origin + "ws", origin=source)
            assert refused.value.status == code


async def raw(origin: str, request: str) -> str:
    """The first line of what is answered to bytes that no library would send."""
    host, port = origin.removeprefix("http://").strip("/").split(":")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(request.replace("HOST", f"{host}:{port}").replace("\n", "\r\n").encode())
    async with asyncio.timeout(NEVER):
        line = await reader.readline()
    writer.close()
    return line.decode().strip()


@pytest.mark.attack("addresses-of-ports")
async def test_requests_that_are_none(session: Session, client: Client) -> None:
    other = await serving(client)
    async with browser() as web:
        origin, beside = await opened(web, session), await opened(web, other)
        cookie = {c.key: c.value for c in web.cookie_jar if c["domain"] in origin}["retinue"]
        good = f"Cookie: retinue={cookie}\n"
        foreign = beside.removeprefix("http://").strip("/")
        assert (await raw(origin, f"GET / HTTP/1.1\nHost: HOST\n{good}\n")).endswith("200 OK")
        for request, answer in (
            ("GET / HTTP/1.1\nHost: HOST\n\n", "401"),
            # No page of another origin gets in. Headers named in `Connection`, which no page can set,
            # are taken away before they count.
            (f"GET / HTTP/1.1\nHost: HOST\n{good}Origin: https://evil.example\n\n", "403"),
            (f"GET / HTTP/1.1\nHost: HOST\n{good}Sec-Fetch-Site: same-site\n\n", "403"),
            (f"GET / HTTP/1.1\nHost: HOST\n{good}Origin: null\n\n", "403"),
            # A plain link may lead here.
            (
                f"GET / HTTP/1.1\nHost: HOST\n{good}Sec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate\n"
                "Sec-Fetch-Dest: document\n\n",
                "200",
            ),
            (f"GET / HTTP/1.1\nHost: 127.0.0.1\n{good}\n", "421"),
            (f"GET / HTTP/1.1\nHost: {foreign}\n{good}\n", "401"),
            # The host of an absolute address counts, and not that beside it.
            (f"GET http://{foreign}/ HTTP/1.1\nHost: HOST\n{good}\n", "401"),
            (f"GET / HTTP/1.1\nHost: HOST\nHost: {foreign}\n{good}\n", "400"),
            (f"POST / HTTP/1.1\nHost: HOST\n{good}Content-Length: 1\nContent-Length: 2\n\nab", "400"),
            (f"POST / HTTP/1.1\nHost: HOST\n{good}Transfer-Encoding: xchunked\n\n", "501"),
            (f"GET / HTTP/1.1\nHost: HOST\n{good}X: {'x' * 70000}\n\n", "431"),
            ("GET //.retinue/open?ticket=x HTTP/1.1\nHost: HOST\n\n", "40"),
        ):
            assert (await raw(origin, request)).split(" ")[1].startswith(answer), request.replace(cookie, "…")[:200]
        # Connections are kept, and none is another session's.
        for _ in range(3):
            for place in (origin, beside):
                async with web.get(place) as response:
                    assert dict(json.loads(await response.read())["headers"])["Host"] in place
        # A session that ends takes its browsers with it, at once, whatever grace its kernel has.
        async with web.ws_connect(beside + "ws") as connection, web.ws_connect(origin + "ws") as stays:
            await other.terminate()
            message = await connection.receive(timeout=NEVER)
            assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.ERROR)
            assert (await other.refresh()).state == "TERMINATING"
            assert (await status(web, beside))[0] in (401, 403)
            await stays.send_str("still")
            assert await stays.receive_str(timeout=NEVER) == "echo 'still'"
    await other.terminate(force=True)
    await other.wait_ended(NEVER)
    with pytest.raises(FailedPrecondition) as caught:
        await other.create_port_ticket("web")
    assert caught.value.reason == "STATE_FORBIDS"
    assert "(TERMINATED_BY_USER" in str(caught.value)


async def test_what_the_program_does_is_said(session: Session) -> None:
    async with browser() as web:
        code, page = await status(web, await opened(web, session, "closed"))
        assert (code, "Nothing listens at port 8081" in page) == (502, True)
        assert (await status(web, await opened(web, session, "8090")))[0] == 502
        code, page = await status(web, await opened(web, session) + "reset")
        assert (code, "broke off" in page) == (502, True)


@pytest.mark.attack("tickets-of-ports")
@pytest.mark.parametrize(
    ("port", "path", "error", "field"),
    [
        ("", "/", InvalidRequest, "port"),
        ("raw", "/", InvalidRequest, "port"),
        ("web", "//evil.example", InvalidRequest, "path"),
        ("web", "/\\evil.example", InvalidRequest, "path"),
        ("web", "/a\nSet-Cookie: b=c", InvalidRequest, "path"),
        ("nothing", "/", NotFound, ""),
        ("22", "/", NotFound, ""),
    ],
)
async def test_bad_tickets(session: Session, port: str, path: str, error: type[Exception], field: str) -> None:
    with pytest.raises(error) as caught:
        await session.create_port_ticket(port, path)
    if isinstance(caught.value, InvalidRequest):
        assert [violation.field for violation in caught.value.violations] == [field]


@pytest.mark.attack("tickets-of-ports", "expired-and-revoked-tokens")
async def test_only_ones_own_and_only_with_a_good_token(session: Session, client: Client, cluster: Cluster) -> None:
    user = await client.users.create("http-user", projects={"default": "admin"})
    token = await client.tokens.create(user=user.name, description="http")
    own = None
    try:
        async with cluster.client(token.secret) as other, browser() as web, browser() as admin:
            # Not even administrators of the project.
            with pytest.raises(NotFound, match="no such session"):
                await (await other.sessions.get(session.id)).create_port_ticket("web")
            own = await serving(other)
            origin = await opened(web, own)
            await opened(admin, await client.sessions.get(own.id))
            unused = await own.create_port_ticket("web")
            async with web.ws_connect(origin + "ws") as connection, admin.ws_connect(origin + "ws") as stays:
                await client.tokens.revoke(token.token.id)
                message = await connection.receive(timeout=NEVER)
                assert message.type is not aiohttp.WSMsgType.TEXT
                assert (await status(web, origin))[0] == 401
                await status(web, unused.url)
                assert (await status(web, origin))[0] == 401
                # The same port in an administrator's browser is no affair of that token.
                await stays.send_str("on")
                assert await stays.receive_str(timeout=NEVER) == "echo 'on'"
    finally:
        if own is not None:
            ending = await client.sessions.get(own.id)
            await ending.terminate(force=True)
            await ending.wait_ended(NEVER)
        await client.users.delete(user.name)


async def until_answered(web: aiohttp.ClientSession, origin: str) -> None:
    await eventually(lambda: status(web, origin), lambda found: found[0] == 200, ignoring=aiohttp.ClientError)


def facts_of(pid: int) -> dict[str, str]:
    """What the kernel says of a process; nothing when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


async def test_it_outlives_its_engine_and_the_manager(session: Session, cluster: Cluster) -> None:
    async with browser() as web:
        origin = await opened(web, session)
        [engine] = engines(cluster)
        # Whatever a stranger made of it would have no rights here.
        facts = facts_of(engine)
        assert facts["Uid"].split()[0] != "0"
        assert int(facts["CapEff"], 16) == 0
        assert facts["NoNewPrivs"] == "1"
        async with web.ws_connect(origin + "ws") as connection:
            os.kill(engine, signal.SIGKILL)
            assert (await connection.receive(timeout=NEVER)).type is not aiohttp.WSMsgType.TEXT
        # For as long as the next one takes to listen, connections are refused.
        await until_answered(web, origin)
        assert engines(cluster) not in ([], [engine])
        [engine] = engines(cluster)
        await cluster.manager.kill()
        await eventually(lambda: facts_of(engine).get("State", "Z")[0] == "Z")
        await cluster.start_manager()
        # The cookie is as good as before.
        await until_answered(web, origin)
        async with web.ws_connect(origin + "ws") as connection:
            await connection.send_str("again")
            assert await connection.receive_str(timeout=NEVER) == "echo 'again'"
