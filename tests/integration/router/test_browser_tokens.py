"""Tokens where browsers can put them, and beside credentials of the program: they let in, and nobody else sees them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from retinue.router.core.credentials import SUBPROTOCOL
from retinue.router.core.table import Access, Endpoint, Revision, Routing
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Answer, read_answer, request
from tests.integration.router.running import HOST, Running, replicas, running, token, toy
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@dataclass
class Rig:
    router: Running
    backend: Backend
    endpoint: Endpoint
    good: str
    foreign: str


@pytest.fixture(params=[False, True], ids=["plain", "retried"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(tmp_path) as router, Backend("a") as backend:
        only, routing = Revision(1, 100, replicas=replicas(backend.port)), Routing(retry_idempotent=request.param)
        endpoint = toy(only, access=Access(revoked=("t2",)), routing=routing)
        other = toy(only, access=Access(), hosts=("other.test",))
        await router.serve(endpoint, other)
        await router.listening()
        yield Rig(router, backend, endpoint, token(endpoint.id), token(other.id))


async def connect(rig: Rig, path: str, *protocols: str) -> Answer:
    """Asks for a WebSocket; returns the answer to that."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
    lines = [f"GET {path} HTTP/1.1", f"host: {HOST}", "connection: Upgrade", "upgrade: websocket"]
    lines += [f"sec-websocket-protocol: {protocol}" for protocol in protocols]
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        return await read_answer(reader)
    finally:
        writer.close()


async def test_a_parameter_lets_in_and_reaches_neither_program_nor_log(rig: Rig) -> None:
    for path, seen in (
        ("/a?access_token={}", "/a"),
        ("/a?b=%20c&access_token={}&d", "/a?b=%20c&d"),
        ("/a?access_token={}&access_token={}", "/a"),
        ("//a/../b?x=access_token&access_token={}", "//a/../b?x=access_token"),
    ):
        answer = await request(rig.router.port, HOST, path.replace("{}", rig.good), authorization="Basic YTpi")
        assert (answer.status, answer.json["path"]) == (200, seen)
        # What is the program's own passes.
        assert answer.json["headers"]["authorization"] == "Basic YTpi"
        assert "api-key" not in answer.json["headers"]
    assert (await connect(rig, f"/ws?access_token={rig.good}")).status == 101
    assert rig.backend.paths[-1] == "/ws"
    served = rig.backend.requests
    for bad, status in (
        (rig.foreign, 403),
        (token(rig.endpoint.id, jti="t2"), 403),
        (rig.good[:-4] + "AAAA", 401),
        ("", 401),
        (f"x&access_token={rig.good}", 401),
    ):
        assert (await request(rig.router.port, HOST, f"/?access_token={bad}")).status == status
    for odd in ("/?access_token", "/?Access_Token=" + rig.good, "/?a#?access_token=" + rig.good):
        assert (await request(rig.router.port, HOST, odd)).status in {400, 401}
    assert rig.backend.requests == served
    log = rig.router.directory / "access.log"
    await request(rig.router.port, HOST, "/last")
    await eventually(lambda: '"/last"' in log.read_text())
    assert rig.good.rpartition(".")[2] not in log.read_text()
    assert "access_token" not in log.read_text()


async def test_a_subprotocol_lets_in_and_the_program_sees_the_others_only(rig: Rig) -> None:
    mine = SUBPROTOCOL + rig.good
    for protocols, seen in (((f"chat, {mine}",), "chat"), ((mine, "chat.v1, chat.v2"), "chat.v1, chat.v2")):
        answer = await connect(rig, "/ws", *protocols)
        assert answer.status == 101
        assert rig.backend.headers[-1]["sec-websocket-protocol"] == seen
        assert not any(rig.good in value for value in rig.backend.headers[-1].values())
        # Which of them it speaks is for the program to say.
        assert "sec-websocket-protocol" not in answer.headers
    # Browsers give a connection up when none of what they offer is chosen.
    alone = await connect(rig, "/ws", mine)
    assert (alone.status, alone.headers["sec-websocket-protocol"]) == (101, mine)
    assert "sec-websocket-protocol" not in rig.backend.headers[-1]
    served = rig.backend.requests
    for bad in (SUBPROTOCOL, SUBPROTOCOL + rig.foreign, SUBPROTOCOL + token(rig.endpoint.id, jti="t2"), "chat"):
        assert (await connect(rig, "/ws", bad)).status in {401, 403}
    assert rig.backend.requests == served


async def test_a_program_has_credentials_of_its_own_beside_a_token(rig: Rig) -> None:
    answer = await request(rig.router.port, HOST, api_key=rig.good, authorization="Bearer sk-master")
    assert (answer.status, answer.json["headers"]["authorization"]) == (200, "Bearer sk-master")
    assert "api-key" not in answer.json["headers"]
    # The same token in both places is the router's in both.
    answer = await request(rig.router.port, HOST, api_key=rig.good, authorization=f"Bearer {rig.good}")
    assert (answer.status, "authorization" in answer.json["headers"]) == (200, False)
    assert (await request(rig.router.port, HOST, api_key="sk-x", authorization="Bearer sk-master")).status == 401
