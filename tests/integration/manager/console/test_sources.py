"""What the console refuses, as requests written by hand, each with its exact answer."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import aiohttp
import pytest

from retinue.manager.console.core.limits import MAX_SOCKETS
from tests.integration.manager.console.conftest import DOMAIN, Served
from tests.integration.manager.console.page import ACCOUNTS, CALL, PROTOCOL, SESSIONS, Page
from tests.integration.manager.rig import bearer
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

WATCH = f"{SESSIONS}/WatchSessions"
EMPTY = struct.pack(">BI", 0, 0)
SIBLING = f"https://p8000-{'0' * 32}.{DOMAIN}"
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol": PROTOCOL,
}


@pytest.mark.attack("foreign-origins")
async def test_every_post_and_websocket_comes_from_the_console(console: Served) -> None:
    token = await console.service.user("ada")
    page = await console.logged_in(token)
    login = json.dumps({"token": token}).encode()
    own = page.own
    sources: tuple[dict[str, str], ...] = (
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Origin": "null"},
        {"Origin": SIBLING, "Sec-Fetch-Site": "same-site"},
        {"Origin": SIBLING},
        {"Origin": "https://evil.test", "Sec-Fetch-Site": "cross-site"},
        {"Origin": own["Origin"].replace("https", "http")},
        {"Origin": own["Origin"], "Sec-Fetch-Site": "same-site"},
        {"Origin": own["Origin"], "Sec-Fetch-Site": "none"},
    )
    cookie = {"Cookie": page.cookie}
    for source in sources:
        for path, body in (("/login", login), ("/logout", b""), (f"{ACCOUNTS}/GetCaller", EMPTY)):
            answer = await page.send("POST", path, {**source, **cookie, "Content-Type": CALL}, body)
            assert (answer.status, "set-cookie" in answer.headers) == (403, False), (source, path)
        answer = await page.send("GET", WATCH, {**source, **cookie, **HANDSHAKE})
        assert answer.status == 403, source
    # Twice is not once.
    answer = await page.send("POST", "/logout", [("Origin", page.origin), ("Origin", SIBLING), *cookie.items()])
    assert answer.status == 403
    # Handshakes carry no second header, nor do calls of old browsers.
    answer = await page.send(
        "POST", f"{ACCOUNTS}/GetCaller", {"Origin": page.origin, "Content-Type": CALL, **cookie}, EMPTY
    )
    assert (answer.status, answer.trailers()) == (200, {"grpc-status": "0"})
    assert await page.status() == "0"


@pytest.mark.attack("paths-of-the-console")
async def test_what_passes_is_in_a_table(console: Served) -> None:
    page = await console.logged_in(await console.service.user("root", role="ADMIN"))
    caller = f"{ACCOUNTS}/GetCaller"
    for path, status in {
        caller: 200,
        "/rpc/retinue.manager.v1.EnrollmentService/Enroll": 404,
        "/rpc/retinue.manager.v1.EnrollmentService/Announce": 404,
        "/rpc/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": 404,
        "/rpc/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": 404,
        "/rpc/grpc.health.v1.Health/Check": 404,
        "/rpc/retinue.agent.v1.AgentService/Sync": 404,
        "/rpc": 404,
        "/rpc/": 404,
        "/rpc//": 404,
        f"/{caller}": 404,
        caller.replace("/GetCaller", "//GetCaller"): 404,
        caller.replace("/rpc/", "/rpc//"): 404,
        caller.replace("/rpc/", "/rpc/./"): 404,
        caller.replace("/rpc/", "/x/../rpc/"): 404,
        caller.replace("/rpc/", "/RPC/"): 404,
        caller.replace("GetCaller", "getcaller"): 404,
        caller.replace("GetCaller", "Get%43aller"): 404,
        caller + "/": 404,
        caller + "%00": 404,
        caller + "?a=b": 200,
        WATCH: 405,
        "/": 404,
        "/login/": 404,
        "//login": 404,
    }.items():
        assert (await page.call(path)).status == status, path
        if status == 404:
            answer = await page.send("GET", path, {**page.own, **HANDSHAKE})
            assert answer.status == 404, path
    for path in (caller, f"{SESSIONS}/GetSession"):
        assert (await page.send("GET", path, {**page.own, **HANDSHAKE})).status == 405
        assert (await page.send("GET", path, page.own)).status == 404
    for path, status in {"/logout": 405, "//": 404, "/a//b": 404, "/a/../b": 404, WATCH: 404}.items():
        assert (await page.send("GET", path)).status == status, path
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        assert (await page.send(method, caller, page.own)).status == 405
    # A service that is not passed on is there, at the manager's own port.
    async with console.service.channel() as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        await check(b"", metadata=bearer("none"))


@pytest.mark.attack("paths-of-the-console")
async def test_calls_are_one_message(console: Served) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    caller = f"{ACCOUNTS}/GetCaller"
    for body in (b"", b"\0\0", EMPTY + b"x", EMPTY * 2, b"\1" + EMPTY[1:], b"\x80" + EMPTY[1:]):
        assert (await page.post(caller, body)).status == 400, body
    for kind in ("application/grpc-web-text", "application/json", "application/x-www-form-urlencoded", "text/plain"):
        assert (await page.post(caller, EMPTY, Content_Type=kind)).status == 415, kind
    large = bytes(5 << 20)
    assert (await page.post(caller, large)).status == 413
    assert (await page.post("/login", large)).status == 413
    assert (await page.post(caller, b"", Content_Length=str(1 << 40))).status == 413
    answer = await page.call(f"{SESSIONS}/GetSession", b"\x0a\x02no")
    trailers = answer.trailers()
    assert (answer.status, answer.headers["content-type"], trailers["grpc-status"]) == (200, CALL, "5")
    assert trailers["grpc-status-details-bin"]


async def test_a_websocket_has_the_subprotocol(console: Served) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    for protocol in ("", "other", f"{PROTOCOL}x"):
        handshake = {**HANDSHAKE, "Sec-WebSocket-Protocol": protocol}
        answer = await page.send("GET", WATCH, {**page.own, **handshake})
        assert answer.status == 400, protocol


@pytest.mark.attack("many-streams")
async def test_a_user_has_64_streams(console: Served) -> None:
    token = await console.service.user("ada")
    pages = [await console.logged_in(token) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(pages[number % 2].stream(WATCH)) for number in range(MAX_SOCKETS)]
        for page in pages:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await opened(page)
            assert refused.value.status == 429
        # Another user's are counted by themselves.
        assert await opened(await console.logged_in(await console.service.user("bob")))
        await streams[0].close()
        await eventually(lambda: opened(pages[0]), ignoring=aiohttp.WSServerHandshakeError)


async def opened(page: Page) -> bool:
    async with page.stream(WATCH):
        return True
