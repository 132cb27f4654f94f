"""The console as a whole: what a request is for, whether it may act, and what is answered.

Only the gateway's engine connects to it. Files are read as they are asked for, from the folder that the build of
the console fills.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from retinue.manager.console.bridge import METHODS, Bridge
from retinue.manager.console.core import documents
from retinue.manager.console.core.frames import HEADER_BYTES, MAX_MESSAGE
from retinue.manager.console.logins import Logins

if TYPE_CHECKING:
    import grpc.aio

    from retinue.manager.console.core.address import ConsoleAddress
    from retinue.manager.console.core.documents import Shown
    from retinue.manager.server.auditing import Auditor
    from retinue.manager.server.authentication import Authenticator
    from retinue.manager.server.calls import Browsers
    from retinue.manager.store.postgres.database import Database


STATIC = Path(__file__).with_name("static")
_STOP_SECONDS = 1.0
# By name, whatever the machine takes them for.
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_NOT_BUILT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="3"><title>The console is not built yet</title>
<h1>The console is not built yet</h1>
<p>This manager runs from a checkout, and without the files of its web console. <code>retinue dev</code> builds them when
it starts, which takes a minute; elsewhere <code>make console</code> does. This page loads itself again until they are
there.</p>
</html>
"""
_Connected = Callable[[socket.socket], Awaitable[None]]


class Console:
    """A console that is still to be served."""

    def __init__(  # noqa: PLR0917  # what the manager has made
        self,
        address: ConsoleAddress,
        database: Database,
        authenticator: Authenticator,
        connect: Callable[[], grpc.aio.Channel],
        auditor: Auditor,
        browsers: Browsers,
        static: Path = STATIC,
    ) -> None:
        """`connect` returns a new channel to the API, which knows of `browsers`; `static` is the folder of files."""
        self._address = address
        self._static = static
        self._logins = Logins(address, database, authenticator.forget, auditor)
        self._make_bridge: Callable[[], Bridge] = lambda: Bridge(address, authenticator, connect, auditor, browsers)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[_Connected]:
        """Serves for as long as the block lasts what connects by the function that is given."""
        bridge = self._make_bridge()

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handle(bridge, request)

        # A message may be as large as those of the API.
        application = web.Application(client_max_size=MAX_MESSAGE + HEADER_BYTES)
        application.router.add_route("*", "/{path:.*}", handle)
        application.on_response_prepare.append(_add_headers)
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=_STOP_SECONDS)
        await runner.setup()

        async def connected(connection: socket.socket) -> None:
            server: Any = runner.server
            await asyncio.get_running_loop().connect_accepted_socket(server, connection)

        try:
            yield connected
        finally:
            await runner.cleanup()
            await bridge.close()

    async def _handle(self, bridge: Bridge, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        if request.method == "POST" or "Upgrade" in request.headers:
            sources = {name: request.headers.getall(name, []) for name in ("Origin", "Sec-Fetch-Site")}
            if why := self._address.wrong_source(sources):
                return _refused(403, f"refused: {why}")
            return await self._act(bridge, request, path)
        if request.method not in {"GET", "HEAD"}:
            return _refused(405, "GET, HEAD or POST", Allow="GET, HEAD, POST")
        if path == "/logout":
            return _refused(405, "POST", Allow="POST")
        if path == "/rpc" or path.startswith("/rpc/"):
            return _refused(404, "calls are POST, streams are websockets")
        found = documents.shown(path)
        return _refused(404, "no such page") if found is None else await self._show(found)

    async def _act(self, bridge: Bridge, request: web.Request, path: str) -> web.StreamResponse:
        """Answers a request that comes from the console's own pages."""
        posted = request.method == "POST"
        if path in {"/login", "/logout"} and posted:
            return await (self._logins.log_in if path == "/login" else self._logins.log_out)(request)
        method = path.removeprefix("/rpc")
        streams = METHODS.get(method) if path.startswith("/rpc/") else None
        if streams is None:
            return _refused(404, "no such method")
        if streams is posted:
            return _refused(405, "a stream is a websocket" if streams else "this call is POST")
        return await (bridge.stream if streams else bridge.call)(request, method)

    async def _show(self, found: Shown) -> web.StreamResponse:
        if not await asyncio.to_thread((self._static / documents.DOCUMENT.file).is_file):
            return web.Response(status=503, text=_NOT_BUILT, content_type="text/html")
        path = self._static / found.file
        if not await asyncio.to_thread(path.is_file):
            if found.required:
                return _refused(404, "no such file")
            return await self._show(documents.DOCUMENT)
        kind = _TYPES.get(path.suffix, "application/octet-stream")
        # Sends the compressed form beside it, where the browser takes that.
        return web.FileResponse(path, headers={**found.headers, "Content-Type": kind})


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    del request
    for name, value in documents.HEADERS.items():
        if name == "Server":
            response.headers[name] = value
        else:
            response.headers.setdefault(name, value)


def _refused(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=headers)
