"""The table of endpoints: plain values, as the leader sends them. Times are in seconds, 0 is no limit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Algorithm(StrEnum):
    """A way to choose a replica."""

    LEAST_REQUEST = "LEAST_REQUEST"
    ROUND_ROBIN = "ROUND_ROBIN"
    HASH = "HASH"
    PICKER = "PICKER"


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that is ready, or drains."""

    session_id: str
    address: str
    port: int
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision with its share of the requests in percent; `max_concurrency` is per replica,
    `queue` for all of them.
    """

    number: int
    percent: int
    http2: bool = False
    max_concurrency: int = 0
    queue: int = 100
    replicas: tuple[Replica, ...] = ()
    # The leader has to know which of them answer.
    watched: bool = False

    @property
    def ready(self) -> tuple[Replica, ...]:
        """Returns the replicas that take new requests."""
        return tuple(replica for replica in self.replicas if not replica.draining)


@dataclass(frozen=True, slots=True)
class Cors:
    """What pages of other origins may do."""

    origins: tuple[str, ...]
    methods: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    credentials: bool = False
    max_age: float = 600.0


@dataclass(frozen=True, slots=True)
class Picker:
    """A server that chooses replicas; `ca` is a certificate authority in PEM, empty for no TLS."""

    host: str
    port: int
    ca: str = ""


@dataclass(frozen=True, slots=True)
class Routing:
    """Choice of a replica, and limits of time. With HASH, neither header nor cookie means the client's address."""

    algorithm: Algorithm = Algorithm.LEAST_REQUEST
    hash_header: str = ""
    hash_cookie: str = ""
    affinity_cookie: str = ""
    affinity_lifetime: float = 3600.0
    request_timeout: float = 0.0
    idle_timeout: float = 300.0
    hold_timeout: float = 300.0
    hold_limit: int = 1000
    retry_idempotent: bool = False
    cors: Cors | None = None
    picker: Picker | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in; the rate is per token, or per address of a public endpoint."""

    public: bool = False
    revoked: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    rate_requests: int = 0
    rate_period: float = 1.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint as a router serves it."""

    id: str
    name: str
    project: str
    hosts: tuple[str, ...]
    revisions: tuple[Revision, ...] = ()
    routing: Routing = Routing()
    access: Access = Access()
    deleted: bool = False

    @property
    def serving(self) -> tuple[Revision, ...]:
        """Returns the revisions with a share of the requests."""
        return tuple(revision for revision in self.revisions if revision.percent > 0)

    @property
    def chosen(self) -> tuple[Revision, ...]:
        """Returns the revisions that requests choose from: without any share,
        the newest stands in for those to come.
        """
        newest = max(self.revisions, key=lambda revision: revision.number, default=Revision(0, 100))
        return self.serving or (replace(newest, percent=100),)

    @property
    def ready(self) -> int:
        """Returns how many replicas of the serving ones take new requests."""
        return sum(len(revision.ready) for revision in self.serving)


@dataclass(frozen=True, slots=True)
class Common:
    """What is the same for all endpoints: the public key of tokens (32 bytes of Ed25519)
    and the certificate for clients in PEM.
    """

    token_key: bytes = b""
    certificate: str = ""
    private_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Table:
    """All that a router serves; `revision` rises within a term."""

    revision: int
    endpoints: Mapping[str, Endpoint]
    common: Common = Common()
