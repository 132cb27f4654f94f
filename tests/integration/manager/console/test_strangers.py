"""What those cost who have no log-in, or send as little as they can: a status, soon, and nothing that stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from typing import TYPE_CHECKING

import aiohttp
import pytest

from retinue.manager.console import bridge, logins
from retinue.manager.console.core import limits
from retinue.manager.console.core.limits import MAX_SOCKETS, MAX_TRIES_OF_ADDRESS
from retinue.manager.identity.tokens import TOKEN_PREFIX, new_secret
from retinue.manager.server.wrong_tokens import BURST, WrongTokens
from tests.integration.manager.console.page import ACCOUNTS, CALL, SESSIONS, Page, ended

if TYPE_CHECKING:
    from tests.integration.manager.console.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLER, WATCH = f"{ACCOUNTS}/GetCaller", f"{SESSIONS}/WatchSessions"
UNAUTHENTICATED, RESOURCE_EXHAUSTED = "16", "8"


async def status_of(page: Page, path: str, length: int, begin: bytes = b"") -> int:
    """The status of the answer to a post whose body begins and never ends."""
    reader, writer = await page.connect()
    try:
        fields = {
            **page.own,
            "Host": page.origin.partition("://")[2],
            "Content-Length": str(length),
            "Content-Type": CALL,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + begin)
        return int((await reader.readline()).split()[1])
    finally:
        writer.transport.abort()


@pytest.mark.attack("slow-console")
async def test_slow_bodies_are_not_waited_for(console: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    # No body of what follows ever comes.
    monkeypatch.setattr(logins, "_BODY_SECONDS", 0.1)
    monkeypatch.setattr(bridge, "_BODY_SECONDS", 0.1)
    assert await status_of(page, "/login", 100, b'{"tok') == 408
    assert await status_of(page, CALLER, 100, b"\0") == 408
    # Nor those that are too long anyway.
    assert await status_of(page, "/login", 5000) == 413
    assert await status_of(page, CALLER, 1 << 40) == 413


@pytest.mark.attack("slow-console")
async def test_a_stranger_is_answered_before_a_body_is_read(console: Served) -> None:
    page = console.page()
    assert await status_of(page, CALLER, 4 << 20) == 200
    page.cookie = f"__Host-retinue-console={new_secret(TOKEN_PREFIX)}"
    assert await status_of(page, CALLER, 4 << 20) == 200
    assert await page.status() == UNAUTHENTICATED


@pytest.mark.attack("slow-console")
async def test_slow_log_ins_of_an_address_are_counted(console: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "_BODY_SECONDS", 0.1)
    # All of them are within it, however long they take.
    monkeypatch.setattr(limits, "TRIES_SECONDS", 3600.0)
    page = console.page()
    statuses = await asyncio.gather(*(status_of(page, "/login", 100) for _ in range(MAX_TRIES_OF_ADDRESS + 5)))
    assert sorted(statuses) == [408] * MAX_TRIES_OF_ADDRESS + [429] * 5


@pytest.mark.attack("slow-console")
async def test_sockets_of_strangers_make_no_call(console: Served) -> None:
    strangers = [console.page() for _ in range(2)]
    strangers[1].cookie = f"__Host-retinue-console={new_secret(TOKEN_PREFIX)}"
    before = len(console.channels)
    async with contextlib.AsyncExitStack() as stack:
        for page in strangers:
            streams = [await stack.enter_async_context(page.stream(WATCH)) for _ in range(MAX_SOCKETS + 1)]
            for stream in streams:
                assert (await ended(stream))["code"] == 16
    assert len(console.channels) == before


async def test_wrong_log_ins_count_for_their_address(console: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    count = WrongTokens.count
    # Nothing is forgiven meanwhile.
    monkeypatch.setattr(WrongTokens, "count", lambda counted, address, _now: count(counted, address, 0.0))
    page = console.page()
    page.cookie = f"__Host-retinue-console={new_secret(TOKEN_PREFIX)}"
    for _ in range(BURST // 20):
        assert set(await asyncio.gather(*(page.status() for _ in range(20)))) == {UNAUTHENTICATED}
    assert await page.status() == RESOURCE_EXHAUSTED
    other = console.page()
    other.cookie = page.cookie
    assert await other.status() == UNAUTHENTICATED
    assert (await console.logged_in(await console.service.user("ada"))).cookie


async def test_frames_that_never_end_are_given_up(console: Served) -> None:
    """And messages in pieces are as large as one at most."""
    page = await console.logged_in(await console.service.user("ada"))
    async with page.stream(WATCH) as stream:
        writer = stream._writer  # noqa: SLF001  # no client sends this
        piece = bytes(1 << 20)
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            for number in range(6):
                # FIN is never set: 0x02 begins a binary message, 0x00 continues it.
                head = struct.pack(">BBQ", 0x00 if number else 0x02, 0x80 | 127, len(piece)) + b"\0\0\0\0"
                writer.transport.write(head + piece)
                await asyncio.sleep(0)
        while not stream.closed:
            await stream.receive()
    assert await page.status() == "0"


async def test_odd_bodies_and_headers_are_refused(console: Served) -> None:
    page = console.page()
    for body in (b"[" * 4000, b"\xff" * 100, json.dumps({"token": "x" * 4000}).encode(), b'{"token": "\\ud800"}'):
        answer = await page.post("/login", body, Content_Type="application/json")
        assert answer.status in {400, 401}, body
    agent = "\x80 <img onerror=x> " + "a" * 5000
    token = await console.service.user("ada")
    answer = await console.page().post("/login", json.dumps({"token": token}).encode(), User_Agent=agent)
    assert answer.status == 204
