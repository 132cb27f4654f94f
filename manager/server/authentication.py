"""Authenticates callers: users by the bearer token in the metadata,
agents and routers by the certificate of the connection.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from retinue.manager.domain.errors import AgentRevoked, CredentialsMissing, TokenInvalid
from retinue.manager.identity.authority import certificate_fingerprint, parse_node_uri
from retinue.manager.identity.principal import Kind, Membership, Principal
from retinue.manager.identity.tokens import TOKEN_PREFIX, hash_secret, is_secret, same_hash
from retinue.manager.server.bearer_lookups import BearerLookups
from retinue.manager.store.fleet import agents, routers
from retinue.manager.store.postgres.lanes import Lane, in_lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from retinue.manager.server.calls import Call
    from retinue.manager.store.accounts.accounts import Bearer
    from retinue.manager.store.postgres.database import Database

# What was looked up is believed for so long; with the interval of the looks at open streams this bounds how long a
# revoked token lives on, to 5 s.
CACHE_SECONDS = 2.0
_MAX_CACHED = 10_000
_ALTERNATIVE_NAMES, _CERTIFICATE = "x509_subject_alternative_name", "x509_pem_cert"
_SCHEME = "Bearer "


class Authenticator:
    """Finds out and remembers for a moment who credentials stand for."""

    def __init__(self, database: Database, *, monotonic: Callable[[], float], clock: Callable[[], dt.datetime]) -> None:
        """`monotonic` is in seconds and measures the age of what is remembered; `clock` says when tokens expire."""
        self._database = database
        self._monotonic = monotonic
        self._clock = clock
        self._lookups = BearerLookups(database)
        self._bearers: dict[bytes, tuple[float, Bearer]] = {}
        self._enrolled: dict[tuple[Kind, str, int], float] = {}

    def forget(self) -> None:
        """Credentials, roles or memberships have changed: look again."""
        self._bearers.clear()
        self._enrolled.clear()

    async def authenticate(self, call: Call) -> Principal:
        """Returns the caller. A certificate of a node counts before any token.

        Raises CredentialsMissing, TokenInvalid, AgentRevoked, StoreUnavailable.
        """
        node = node_of(call.identities)
        if node is not None:
            certificate = next(iter(call.identities.get(_CERTIFICATE, ())), b"")
            return await self._node(*node, certificate_fingerprint(certificate))
        return await self.user(bearer_of(call.metadata))

    async def _node(self, kind: Kind, node_id: str, generation: int, certificate: str) -> Principal:
        now = self._monotonic()
        key = kind, node_id, generation
        store = routers if kind is Kind.ROUTER else agents
        if now - self._enrolled.get(key, -CACHE_SECONDS) >= CACHE_SECONDS:
            with in_lane(Lane.AGENTS):
                async with self._database.transaction() as tx:
                    enrolled = await store.is_enrolled(tx, node_id, generation)
            if not enrolled:
                self._enrolled.pop(key, None)
                raise AgentRevoked
            self._make_room(self._enrolled)
            self._enrolled[key] = now
        return Principal(kind, node_id, generation=generation, certificate=certificate)

    async def user(self, secret: str) -> Principal:
        """Returns the user that a token stands for. Raises TokenInvalid, StoreUnavailable."""
        if not is_secret(secret, TOKEN_PREFIX):
            raise TokenInvalid
        key = hash_secret(secret)
        now = self._monotonic()
        looked, bearer = self._bearers.get(key, (-CACHE_SECONDS, None))
        if bearer is None or now - looked >= CACHE_SECONDS:
            bearer = await self._lookups.find(key)
            if bearer is None or not same_hash(bearer.hash, key):
                self._bearers.pop(key, None)
                raise TokenInvalid
            self._make_room(self._bearers)
            self._bearers[key] = (now, bearer)
        if bearer.revoked:
            raise TokenInvalid("was revoked")
        if bearer.expire_time is not None and bearer.expire_time <= self._clock():
            raise TokenInvalid(f"expired at {bearer.expire_time.astimezone(dt.UTC):%Y-%m-%d %H:%M:%SZ}")
        memberships = tuple(Membership(project, role) for project, role in bearer.memberships)
        return Principal(Kind.USER, bearer.user, bearer.role, memberships, bearer.token_id)

    @staticmethod
    def _make_room(cache: dict[Any, Any]) -> None:
        if len(cache) >= _MAX_CACHED:
            cache.clear()


def node_of(identities: Mapping[str, Iterable[bytes]]) -> tuple[Kind, str, int] | None:
    """Returns the agent or router that a connection's certificate names, and its generation;
    None without such a certificate.
    """
    names = (bytes(name).decode(errors="replace") for name in identities.get(_ALTERNATIVE_NAMES, ()))
    return next(filter(None, map(parse_node_uri, names)), None)


def bearer_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns the secret in `authorization: Bearer SECRET`. Raises CredentialsMissing when there is not exactly one."""
    values = [value for key, value in metadata if key == "authorization"]
    if len(values) != 1:
        raise CredentialsMissing("send `authorization: Bearer TOKEN`, once")
    value = values[0] if isinstance(values[0], str) else values[0].decode(errors="replace")
    if not value.startswith(_SCHEME):
        raise CredentialsMissing("send `authorization: Bearer TOKEN`")
    return value.removeprefix(_SCHEME)
