"""Answers the engine's questions about requests: checks access, names the cluster to go to,
and exchanges tickets for cookies.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from retinue.manager.domain.errors import ApiError, CredentialsMissing, MethodDenied, TokenInvalid
from retinue.manager.domain.session.events import AccessMethod, KernelAccess
from retinue.manager.gateway.core import pages, resources
from retinue.manager.gateway.core.rules import ACCESS_PREFIX, ACCESS_SECONDS, OPEN_PATH, TICKET_PREFIX, Address, Target
from retinue.manager.identity.tokens import hash_secret, is_secret, new_secret
from retinue.manager.session import access_log
from retinue.manager.session.kernel_locator import MAIN_HOSTNAME
from retinue.manager.store.access import port_access
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.proxy.ads import RefusedError

if TYPE_CHECKING:
    from envoy.type.v3.http_status_pb2 import StatusCode

    from retinue.manager.gateway.access_cache import Access, AccessCache

_log = logging.getLogger(__name__)

Denied = Callable[[str, str, ApiError], None]
"""Is called with the address of a browser that gets no access to a port, what it asked for in words, and why."""
PORT, TICKET = "port of a session", "ticket of a port"

_OWN_PATHS = OPEN_PATH.rpartition("/")[0] + "/"
# As gRPC numbers them: whatever is not 0 is a refusal.
_PERMISSION_DENIED = 7
# A person looks at the page: what passes as soon as that, a conflict or a database that starts again, is not shown.
_RETRYING = AsyncRetrying(
    retry=retry_if_exception_type(StoreUnavailable),
    wait=wait_random_exponential(multiplier=0.1, max=1.0),
    stop=stop_after_delay(5.0),
    reraise=True,
)
_SOURCES = ("Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")


class ForwardAuthHandler(external_auth_pb2_grpc.AuthorizationServicer):
    """Answers one question at a time, each by itself."""

    def __init__(
        self,
        address: Address,
        database: Database,
        cache: AccessCache,
        grant: Callable[[Access, str], Awaitable[str | None]],
        *,
        committed: Callable[[], None],
        denied: Denied,
    ) -> None:
        """`grant` has the engine send requests with an access and its secret onwards, and gives the name of the
        cluster, None when the access was lost meanwhile; `committed` is called when something was added to the journal,
        and `denied` as `Denied` says.
        """
        self._denied = denied
        self._address = address
        self._database = database
        self._cache = cache
        self._grant = grant
        self._committed = committed

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answers one question; called by gRPC."""
        http = request.attributes.request.http
        headers = _headers(http.header_map.headers)
        if "," in http.host:
            return _shown(pages.TWO_HOSTS)
        target = self._address.target(http.host)
        if target is None:
            return _shown(pages.UNKNOWN_HOST)
        path, _, query = http.path.partition("?")
        browser = request.attributes.source.address.socket_address.address
        try:
            if path.startswith(_OWN_PATHS):
                return await self._exchange(target, http.method, path, query, headers, browser)
            return await self._check(target, http.method, headers, browser)
        except StoreUnavailable:
            return _shown(pages.UNREACHABLE)
        except (TimeoutError, RefusedError) as error:
            _log.error("the gateway's engine does not follow: %r", error)
            return _shown(pages.UNREACHABLE)

    async def _check(self, target: Target, method: str, headers: Mapping[str, str], browser: str) -> Any:
        secrets = self._address.secrets(headers.get("cookie", ""))
        access: Access | None = await _RETRYING(self._cache.find, secrets, target)
        if access is None:
            self._denied(browser, PORT, TokenInvalid() if secrets else CredentialsMissing("open the port again"))
            return _shown(pages.NO_ACCESS, {"WWW-Authenticate": "Retinue-Ticket"})
        source = {name: value for name in _SOURCES if (value := headers.get(name.lower()))}
        if why := self._address.wrong_source(target, method, source):
            self._denied(browser, PORT, MethodDenied(why))
            return _shown(pages.refused(why))
        if access.over:
            return _shown(pages.OVER)
        if access.location is None:
            return _shown(pages.NOT_RUNNING)
        [secret] = [one for one in secrets if hash_secret(one) == access.hash][:1]
        cluster = await self._grant(access, secret)
        if cluster is None:
            return _shown(pages.NO_ACCESS, {"WWW-Authenticate": "Retinue-Ticket"})
        answer = external_auth_pb2.CheckResponse()
        header = answer.ok_response.headers.add()
        header.header.key, header.header.value = resources.CLUSTER, cluster
        header.append_action = header.OVERWRITE_IF_EXISTS_OR_ADD
        if access.host:
            origin = answer.ok_response.headers.add()
            origin.header.key, origin.header.value = "origin", resources.origin_of(access.host)
            origin.append_action = origin.OVERWRITE_IF_EXISTS
        return answer

    async def _exchange(  # noqa: PLR0917  # what there is of a request
        self, target: Target, method: str, path: str, query: str, headers: Mapping[str, str], browser: str
    ) -> Any:
        if path != OPEN_PATH:
            return _shown(pages.UNKNOWN_PAGE)
        if method != "GET":
            return _shown(pages.ONLY_GET, {"Allow": "GET"})
        if "prefetch" in f"{headers.get('sec-purpose', '')} {headers.get('purpose', '')}":
            return _shown(pages.NOT_YET)
        ticket, secret = parse_qs(query).get("ticket", [""])[0], new_secret(ACCESS_PREFIX)
        used = None
        if is_secret(ticket, TICKET_PREFIX):
            used = await self._use(target, hash_secret(ticket), hash_secret(secret))
        if used is None:
            self._denied(browser, TICKET, TokenInvalid())
            return _shown(pages.BAD_TICKET)
        self._committed()
        _log.info("%s opens port %d of session %s in a browser", used.user, target.port, target.session_id)
        given = {
            "Location": used.path,
            "Set-Cookie": self._address.given_cookie(secret),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "Server": "retinue",
        }
        return _answer(303, given)

    async def _use(self, target: Target, ticket: bytes, secret: bytes) -> port_access.RedeemedGrant | None:
        """Gives access by a secret for a ticket, both as hashes; None when the ticket is not good.
        Raises StoreUnavailable.
        """
        tried: port_access.RedeemedGrant | None = None
        # A copy, which has no state of requests beside this one.
        async for attempt in _RETRYING.copy():
            with attempt:
                async with self._database.transaction() as tx:
                    # A commit that failed may have taken effect.
                    if tried is not None and await port_access.exists(tx, secret):
                        return tried
                    tried = await port_access.exchange(
                        tx, ticket, secret, session_id=target.session_id, port=target.port, seconds=ACCESS_SECONDS
                    )
                    if tried is not None:
                        access = KernelAccess(AccessMethod.HTTP, MAIN_HOSTNAME, tried.user, tried.token_id, target.port)
                        await access_log.record(tx, target.session_id, access)
        return tried


def _headers(fields: Iterable[Any]) -> Mapping[str, str]:
    """Returns headers by their names; of one that came more than once, all values."""
    headers: dict[str, str] = {}
    for field in fields:
        value = field.raw_value.decode(errors="replace")
        between = "; " if field.key == "cookie" else ", "
        headers[field.key] = f"{headers[field.key]}{between}{value}" if field.key in headers else value
    return headers


def _shown(page: pages.Page, headers: Mapping[str, str] | None = None) -> Any:
    return _answer(page.status.value, {**pages.HEADERS, **(headers or {})}, page.body().decode())


def _answer(status: int, headers: Mapping[str, str], body: str = "") -> Any:
    """Returns an answer that the engine gives in the program's place."""
    answer = external_auth_pb2.CheckResponse()
    answer.status.code = _PERMISSION_DENIED
    denied = answer.denied_response
    # A status of HTTP: the engine has the same numbers.
    denied.status.code = cast("StatusCode.ValueType", status)
    denied.body = body
    for name, value in headers.items():
        header = denied.headers.add()
        header.header.key, header.header.value = name.lower(), value
        header.append_action = header.OVERWRITE_IF_EXISTS_OR_ADD
    return answer
