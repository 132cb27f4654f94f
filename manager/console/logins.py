"""Logs browsers in and out: for a token or a ticket, a token of their own, which is made with that one.

So it ends with that one, and by itself after 12 hours. Logging out revokes it, and all that was made with it.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
from typing import TYPE_CHECKING

import grpc
from aiohttp import web

from retinue.manager.console.browsers import BodyRefusedError, browser_address, read_body
from retinue.manager.console.core.address import LOGIN_SECONDS, ConsoleAddress
from retinue.manager.console.core.limits import MAX_TRIES_OF_ADDRESS, Tries
from retinue.manager.domain.errors import TokenInvalid
from retinue.manager.identity.tokens import (
    CONSOLE_TICKET_PREFIX,
    MAX_TOKENS,
    TOKEN_PREFIX,
    hash_secret,
    is_secret,
    new_secret,
)
from retinue.manager.store.access import console_tickets
from retinue.manager.store.accounts import accounts
from retinue.manager.store.postgres.conflicts import outlasting_conflicts
from retinue.manager.store.postgres.database import Database, StoreUnavailable, Transaction
from retinue.manager.store.postgres.lanes import Lane, in_lane

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from retinue.manager.server.auditing import Auditor
    from retinue.manager.store.accounts.accounts import TokenRecord

_log = logging.getLogger(__name__)

_MAX_BODY, _BODY_SECONDS = 4096, 10.0
_MAX_BROWSER = 100
LOG_IN = "console log-in"
"""What the audit calls a log-in."""
_Code = grpc.StatusCode
_WRONG = "the token or the link is not good (any more): a link is good once, within a minute"


class RefusedError(Exception):
    """A browser is not logged in."""

    def __init__(self, status: int, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Logins:
    """Log-ins of all browsers; belongs on one event loop."""

    def __init__(
        self, address: ConsoleAddress, database: Database, changed: Callable[[], None], auditor: Auditor
    ) -> None:
        """`changed` is called when tokens were revoked."""
        self._auditor = auditor
        self._address = address
        self._database = database
        self._changed = changed
        self._tries = Tries()
        self._tries_of_address = Tries(MAX_TRIES_OF_ADDRESS)

    async def log_in(self, request: web.Request) -> web.Response:
        """Answers with a cookie, or with a refusal in JSON."""
        try:
            _check(self._tries_of_address.count(browser_address(request), time.monotonic()))
            secret, given = new_secret(TOKEN_PREFIX), _given(await read_body(request, _MAX_BODY, _BODY_SECONDS))
            if given[1].isascii():
                _check(self._tries.count(hash_secret(given[1]).hex(), time.monotonic()))
            browser = "".join(filter(str.isprintable, request.headers.get("User-Agent", "")))[:_MAX_BROWSER]
            token = await self._make(*given, secret, f"console, {browser}")
        except BodyRefusedError as error:
            code = _Code.INVALID_ARGUMENT
            return web.json_response({"code": code.value[0], "message": str(error)}, status=error.status)
        except RefusedError as error:
            if error.code is _Code.UNAUTHENTICATED:
                self._auditor.deny(browser_address(request), LOG_IN, TokenInvalid())
            return web.json_response({"code": error.code.value[0], "message": str(error)}, status=error.status)
        except StoreUnavailable:
            message = "the database is out of reach for a moment"
            return web.json_response({"code": _Code.UNAVAILABLE.value[0], "message": message}, status=503)
        _log.info("%s logs in to the console", token.user_name)
        seconds = LOGIN_SECONDS
        if token.expire_time is not None:
            seconds = max(0, int((token.expire_time - dt.datetime.now(dt.UTC)).total_seconds()))
        return web.Response(status=204, headers={"Set-Cookie": self._address.given_cookie(secret, seconds)})

    async def log_out(self, request: web.Request) -> web.Response:
        """Revokes the token of the cookie, if there is one, and takes the cookie back."""
        secret = self._address.secret(request.headers.getall("Cookie", []))
        if secret:
            try:
                with in_lane(Lane.CREDENTIALS):
                    await self._revoke(hash_secret(secret))
            except StoreUnavailable:
                # The cookie stays: it is still good.
                message = "the database is out of reach for a moment: you are not logged out"
                return web.json_response({"code": _Code.UNAVAILABLE.value[0], "message": message}, status=503)
            self._changed()
        return web.Response(status=204, headers={"Set-Cookie": self._address.cleared_cookie()})

    async def _make(self, kind: str, given: str, secret: str, description: str) -> TokenRecord:
        """Returns the token of a browser. Raises RefusedError, StoreUnavailable."""
        with in_lane(Lane.CREDENTIALS):
            return await self._exchange(kind, given, secret, description)

    @outlasting_conflicts
    async def _exchange(self, kind: str, given: str, secret: str, description: str) -> TokenRecord:
        async with self._database.transaction() as tx:
            parent_id = await _parent(tx, kind, given)
            return await _child(tx, parent_id, hash_secret(secret), description)

    @outlasting_conflicts
    async def _revoke(self, secret_hash: bytes) -> None:
        async with self._database.transaction() as tx:
            bearer = await accounts.find_bearer(tx, secret_hash)
            if bearer is not None:
                await accounts.get_user(tx, bearer.user, lock=True)
                await accounts.revoke_token(tx, bearer.token_id)


def _check(wait: int) -> None:
    if wait:
        raise RefusedError(429, _Code.RESOURCE_EXHAUSTED, f"too many tries to log in: try again in {wait} s")


async def _parent(tx: Transaction, kind: str, given: str) -> uuid.UUID:
    """Returns the token that is given, or that a ticket, which is used up, was made with. Raises RefusedError."""
    found: uuid.UUID | None = None
    if kind == "token" and is_secret(given, TOKEN_PREFIX):
        bearer = await accounts.find_bearer(tx, hash_secret(given))
        found = None if bearer is None else bearer.token_id
    elif kind == "ticket" and is_secret(given, CONSOLE_TICKET_PREFIX):
        found = await console_tickets.use(tx, hash_secret(given))
    if found is None:
        raise RefusedError(401, _Code.UNAUTHENTICATED, _WRONG)
    return found


async def _child(tx: Transaction, parent_id: uuid.UUID, secret_hash: bytes, description: str) -> TokenRecord:
    """Returns a new token that is made with another one. Raises RefusedError."""
    known = await accounts.get_token(tx, parent_id)
    # One at a time for each user: tokens are counted, and none comes from one that is being revoked.
    user = None if known is None else await accounts.get_user(tx, known.user_name, lock=True)
    parent = await accounts.get_token(tx, parent_id)
    if user is None or parent is None or parent.revoke_time is not None or _has_ended(parent.expire_time):
        raise RefusedError(401, _Code.UNAUTHENTICATED, _WRONG)
    if await accounts.count_live_tokens(tx, user.name) >= MAX_TOKENS:
        raise RefusedError(429, _Code.RESOURCE_EXHAUSTED, f"{MAX_TOKENS} tokens of {user.name} are valid: revoke some")
    ttl = dt.timedelta(seconds=LOGIN_SECONDS)
    return await accounts.create_token(
        tx, user.name, secret_hash, description=description, ttl=ttl, parent_id=parent.id
    )


def _has_ended(expire_time: dt.datetime | None) -> bool:
    return expire_time is not None and expire_time <= dt.datetime.now(dt.UTC)


def _given(body: bytes) -> tuple[str, str]:
    """Returns what a body holds, `token` or `ticket`, and its secret. Raises RefusedError."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    match parsed:
        case {"token": str(given)} if len(parsed) == 1:
            return "token", given
        case {"ticket": str(given)} if len(parsed) == 1:
            return "ticket", given
    raise RefusedError(400, _Code.INVALID_ARGUMENT, 'send {"token": …} or {"ticket": …} in JSON')
