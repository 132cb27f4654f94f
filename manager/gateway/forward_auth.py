"""Answers Caddy's forward-auth requests: checks access, names the upstream socket, and exchanges tickets for cookies."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from aiohttp import web

from retinue.manager.access import access_log
from retinue.manager.access.access_log import AccessMethod, KernelAccess
from retinue.manager.access.kernel_locator import MAIN_HOSTNAME
from retinue.manager.gateway import sockets
from retinue.manager.gateway.access_cache import AccessCache
from retinue.manager.gateway.core import configuration, pages
from retinue.manager.gateway.core.rules import ACCESS_PREFIX, ACCESS_SECONDS, OPEN_PATH, TICKET_PREFIX, Address, Target
from retinue.manager.identity.tokens import hash_secret, is_secret, new_secret
from retinue.manager.store import port_access
from retinue.manager.store.database import Database, StoreUnavailable

_log = logging.getLogger(__name__)

_LONGEST_FIELD = 32 * 1024


class ForwardAuthHandler:
    """Answers one request of Caddy's at a time, each by itself."""

    def __init__(
        self,
        address: Address,
        database: Database,
        cache: AccessCache,
        open_socket: Callable[[bytes], str],
        *,
        user: int,
        committed: Callable[[], None],
    ) -> None:
        """`open_socket` gives the socket for an access; `user` is the one whose questions are answered; `committed` is called when something
        was added to the journal.
        """
        self._address = address
        self._database = database
        self._cache = cache
        self._open_socket = open_socket
        self._user = user
        self._committed = committed

    async def serve(self, listening: socket.socket) -> web.ServerRunner:
        """Answers at a socket until the runner is cleaned up."""
        # Ours is the only client, and it speaks for many.
        server = web.Server(self.answer, access_log=None, max_line_size=_LONGEST_FIELD, max_field_size=_LONGEST_FIELD)
        runner = web.ServerRunner(server)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        return runner

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one question."""
        connection = None if request.transport is None else request.transport.get_extra_info("socket")
        if connection is None or sockets.peer_user(connection) != self._user:
            return web.Response(status=403)
        target = self._address.target(request.headers.get(configuration.HOST, ""))
        if target is None:
            return _shown(pages.UNKNOWN_HOST)
        try:
            if request.headers.get(configuration.STEP) == configuration.OPEN:
                return await self._exchange(target, request)
            return await self._check(target, request)
        except StoreUnavailable:
            return _shown(pages.UNREACHABLE)

    async def _check(self, target: Target, request: web.BaseRequest) -> web.Response:
        cookies = "; ".join(request.headers.getall("Cookie", ()))
        access = await self._cache.find(self._address.secrets(cookies), target)
        if access is None:
            return _shown(pages.NO_ACCESS, {"WWW-Authenticate": "Retinue-Ticket"})
        method = request.headers.get(configuration.METHOD, "")
        source = {name: value for name, ours in configuration.SOURCES.items() if (value := request.headers.get(ours))}
        if why := self._address.wrong_source(target, method, source):
            return _shown(pages.refused(why))
        if access.over:
            return _shown(pages.OVER)
        if access.place is None:
            return _shown(pages.NOT_RUNNING)
        onwards = {
            configuration.SOCKET: self._open_socket(access.hash),
            configuration.COOKIE: self._address.other_cookies(cookies),
        }
        return web.Response(status=200, headers=onwards)

    async def _exchange(self, target: Target, request: web.BaseRequest) -> web.Response:
        if request.path != OPEN_PATH:
            return _shown(pages.UNKNOWN_PAGE)
        if request.headers.get(configuration.METHOD) != "GET":
            return _shown(pages.ONLY_GET, {"Allow": "GET"})
        if "prefetch" in f"{request.headers.get('Sec-Purpose', '')} {request.headers.get('Purpose', '')}":
            return _shown(pages.NOT_YET)
        ticket, secret = request.query.get("ticket", ""), new_secret(ACCESS_PREFIX)
        if not is_secret(ticket, TICKET_PREFIX):
            return _shown(pages.BAD_TICKET)
        async with self._database.transaction() as tx:
            used = await port_access.exchange(
                tx,
                hash_secret(ticket),
                hash_secret(secret),
                session_id=target.session_id,
                port=target.port,
                seconds=ACCESS_SECONDS,
            )
            if used is not None:
                access = KernelAccess(AccessMethod.HTTP, MAIN_HOSTNAME, used.user, used.token_id, target.port)
                await access_log.record(tx, target.session_id, access)
        if used is None:
            return _shown(pages.BAD_TICKET)
        self._committed()
        _log.info("%s opens port %d of session %s in a browser", used.user, target.port, target.session_id)
        headers = {
            "Location": used.path,
            "Set-Cookie": self._address.given_cookie(secret),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "Server": "retinue",
        }
        return web.Response(status=303, headers=headers)


def _shown(page: pages.Page, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=page.status, body=page.body(), headers={**pages.HEADERS, **(headers or {})})
