"""Queries of endpoints to a real HTTP server that answers like Prometheus, or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from aiohttp import encode_basic_auth, web

from retinue.manager.endpoints.queries import QueryReader
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.asyncio(loop_scope="session")


def vector(*values: str) -> dict[str, object]:
    result = [{"metric": {}, "value": [1.0, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


class Server:
    """Answers what `answers` has for a query, and keeps what it was asked with."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], Awaitable[web.StreamResponse]]] = {}
        self.asked: list[str] = []
        self.users: set[str] = set()
        self.elsewhere = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        query = str((await request.post())["query"])
        self.asked.append(query)
        self.users.add(request.headers["Authorization"])
        return await self.answers[query]()

    async def other(self, _request: web.Request) -> web.Response:
        self.elsewhere += 1
        return web.json_response(vector("666"))


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_post("/base/api/v1/query", made.answer)
    app.router.add_route("*", "/other", made.other)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://me:secret@127.0.0.1:{runner.addresses[0][1]}/base"
    try:
        yield made
    finally:
        await runner.cleanup()


async def test_sums_are_known_and_what_is_no_answer_is_not(server: Server) -> None:
    never = asyncio.Event()

    async def sums() -> web.StreamResponse:
        return web.json_response(vector("1.5", "2"))

    async def silent() -> web.StreamResponse:
        await never.wait()
        raise AssertionError

    async def redirects() -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/other")

    async def huge() -> web.StreamResponse:
        return web.Response(body=b" " * (2 << 20))

    server.answers = {"sum": sums, "silent": silent, "redirects": redirects, "huge": huge}
    reader = QueryReader(server.url)
    reader.watch(set(server.answers))
    running = asyncio.create_task(reader.run())
    try:
        await eventually(lambda: reader.value("sum"), lambda value: value == 3.5)
        # Each was asked again, so the first answer to it is in, but for that of the silent one.
        await eventually(lambda: server.asked, lambda asked: asked.count("huge") > 1 and asked.count("redirects") > 1)
        assert [reader.value(query) for query in ("silent", "redirects", "huge", "not asked")] == [None] * 4
        assert (server.elsewhere, server.users) == (0, {encode_basic_auth("me", "secret")})
        reader.watch({"silent"})
        assert reader.value("sum") is None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
