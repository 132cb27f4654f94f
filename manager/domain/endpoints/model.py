"""What the controller of endpoints and the routers' side exchange: the routed endpoints, and the traffic on them.

The controller publishes the whole list of routed endpoints whenever it has looked; the edge makes a table with a
revision of it. In return it reports what the live routers measured, and which revision of the table all of them serve.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from retinue.manager.domain.endpoints.states import ReplicaState


class AppProtocol(StrEnum):
    """The protocol that replicas speak at their port."""

    HTTP1 = "HTTP1"
    HTTP2 = "HTTP2"
    GRPC = "GRPC"


class Algorithm(StrEnum):
    """How a router chooses a replica."""

    LEAST_REQUEST = "LEAST_REQUEST"
    ROUND_ROBIN = "ROUND_ROBIN"
    HASH = "HASH"
    PICKER = "PICKER"


class HashSource(StrEnum):
    """What is hashed with Algorithm.HASH."""

    HEADER = "HEADER"
    COOKIE = "COOKIE"
    CLIENT_ADDRESS = "CLIENT_ADDRESS"


class AccessMode(StrEnum):
    """Who may send requests."""

    PUBLIC = "PUBLIC"
    TOKEN = "TOKEN"  # noqa: S105  # a mode


@dataclass(frozen=True, slots=True)
class Affinity:
    """Clients stay with a replica by this cookie, for `lifetime_ms`."""

    cookie: str
    lifetime_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Cors:
    """What pages of other origins may do; `origins` are exact, or `*`."""

    origins: tuple[str, ...]
    methods: tuple[str, ...] = ("GET", "HEAD", "POST")
    headers: tuple[str, ...] = ()
    credentials: bool = False
    max_age_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """How requests reach replicas. Times in milliseconds; `request_timeout_ms` 0: no limit."""

    algorithm: Algorithm = Algorithm.LEAST_REQUEST
    # With HASH; the name of the header or cookie.
    hash_source: HashSource = HashSource.CLIENT_ADDRESS
    hash_name: str = ""
    # With PICKER; HOST:PORT, and a certificate authority in PEM, empty for no TLS.
    picker_address: str = ""
    picker_ca: str = ""
    request_timeout_ms: int = 0
    idle_timeout_ms: int = 300_000
    hold_timeout_ms: int = 300_000
    hold_limit: int = 1_000
    retry_idempotent: bool = False
    affinity: Affinity | None = None
    cors: Cors | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestRate:
    """A number of requests in a period."""

    requests: int
    period_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Who may send requests, from which networks (CIDR; empty: all), and how many with each token."""

    mode: AccessMode = AccessMode.TOKEN
    per_token: RequestRate | None = None
    source_ranges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutedReplica:
    """A replica that routers send requests to (READY), or let finish what it has (DRAINING)."""

    session_id: uuid.UUID
    address: str
    port: int
    state: ReplicaState


@dataclass(frozen=True, slots=True)
class RoutedRevision:
    """A revision with its effective share of new requests in percent, and its replicas.
    `max_concurrency` 0: no limit.
    """

    number: int
    weight: int
    protocol: AppProtocol = AppProtocol.HTTP1
    max_concurrency: int = 0
    queue: int = 100
    replicas: tuple[RoutedReplica, ...] = ()
    # Routers report which of them answer.
    watched: bool = False


@dataclass(frozen=True, slots=True)
class RoutedEndpoint:
    """An endpoint as routers are to serve it.

    `gate`: requests are held, as no replica is ready or none is to get any more. `deleted`: it answers 410. Weights sum
    to 100, or are all 0 when nothing can serve. The table of all endpoints adds the ids of tokens that were `revoked`
    and have not ended, and how many `routers` share the limits of its replicas.
    """

    id: uuid.UUID
    project: str
    name: str
    host_label: str
    routing: RoutingPolicy = field(default_factory=RoutingPolicy)
    access: AccessPolicy = field(default_factory=AccessPolicy)
    revisions: tuple[RoutedRevision, ...] = ()
    gate: bool = True
    deleted: bool = False
    revoked: tuple[str, ...] = ()
    routers: int = 1


@dataclass(frozen=True, slots=True)
class RevisionTraffic:
    """What the live routers measured of a revision, added up. Gauges are of now;
    counters never fall while a router lives.

    `latency_buckets` are (upper bound in ms, number of answers at most that slow), cumulative, in rising order.
    """

    in_flight: int = 0
    pending: int = 0
    requests: int = 0
    errors: int = 0
    latency_buckets: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class EndpointTraffic:
    """What the live routers measured of an endpoint; `held` are requests that the gate holds."""

    held: int = 0
    revisions: Mapping[int, RevisionTraffic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is known of all routers now.

    `live` are routers that count: heard within 15 s; `missing` those of them whose numbers are not in here, so that
    these are partial. `silent` are those that were not heard, but may serve.
    `acknowledged` is the newest revision of the table that every live router serves; `current` the number of those that
    serve the newest. `draining` has the requests on each draining replica; one that a live router has not reported on
    is not there. `answered` counts the requests that replicas of watched revisions have answered;
    it rises with each, and falls when a router goes.
    """

    live: int = 0
    silent: int = 0
    missing: int = 0
    acknowledged: int = 0
    current: int = 0
    endpoints: Mapping[uuid.UUID, EndpointTraffic] = field(default_factory=dict)
    draining: Mapping[uuid.UUID, int] = field(default_factory=dict)
    answered: Mapping[uuid.UUID, int] = field(default_factory=dict)


class Edge(Protocol):
    """The routers' side, as the controller of endpoints sees it."""

    def publish(self, endpoints: Sequence[RoutedEndpoint]) -> int:
        """Takes all endpoints as they are to be served from now on; returns the revision of the table that has them.

        Without a difference to the last time it is the same revision.
        """

    def traffic(self) -> Traffic:
        """Returns what is known of the routers now."""

    def refusals(self) -> Mapping[uuid.UUID, str]:
        """Returns endpoints that a router refuses, with its words: it serves their former state."""


class NoRouters:
    """The edge of a manager that no router belongs to: everything is acknowledged,
    and nothing is known of any traffic.
    """

    def publish(self, endpoints: Sequence[RoutedEndpoint]) -> int:
        """Takes no note."""
        return 0

    def traffic(self) -> Traffic:
        """Returns nothing."""
        return Traffic()

    def refusals(self) -> Mapping[uuid.UUID, str]:
        """Returns none."""
        return {}
