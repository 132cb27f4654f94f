"""Reads the table out of messages: a bad endpoint costs that endpoint only."""

from __future__ import annotations

import ipaddress
import math
import re
from typing import TYPE_CHECKING

from retinue.router.core.table import Access, Algorithm, Common, Cors, Endpoint, Picker, Replica, Revision, Routing
from retinue.router.v1 import router_service_pb2 as pb
from retinue.rpc import times

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

    from retinue.types.v1 import cors_pb2

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_TOKEN = re.compile(r"[!-~]{1,128}")
_ORIGIN = re.compile(r"[!-~]{1,512}")
_MAX_PORT, _MAX_REPLICAS, _KEY_BYTES = 65_535, 10_000, 32
# Longer than any limit that the API accepts.
_MAX_SECONDS = 32 * 86_400.0
_LONGEST_NAME = 128
_ALGORITHMS = {
    pb.ALGORITHM_UNSPECIFIED: Algorithm.LEAST_REQUEST,
    pb.ALGORITHM_LEAST_REQUEST: Algorithm.LEAST_REQUEST,
    pb.ALGORITHM_ROUND_ROBIN: Algorithm.ROUND_ROBIN,
    pb.ALGORITHM_HASH: Algorithm.HASH,
    pb.ALGORITHM_PICKER: Algorithm.PICKER,
}


class TableError(ValueError):
    """A message is no part of a table; the text says why."""


def common(message: pb.Common) -> Common:
    """Returns what is the same for all endpoints. Raises TableError."""
    if len(message.token_key) != _KEY_BYTES:
        raise TableError("the key of tokens is not 32 bytes long")
    return Common(message.token_key, message.certificate, message.private_key)


def endpoint(message: pb.Endpoint) -> Endpoint:
    """Returns an endpoint. Raises TableError."""
    if not _ID.fullmatch(message.id):
        raise TableError(f"no endpoint has the id {message.id[:64]!r}")
    for host in message.hosts:
        _check(_HOST.fullmatch(host) is not None, f"{host[:64]!r} is no host name")
    revisions = tuple(map(_revision, message.revisions))
    _check(len({found.number for found in revisions}) == len(revisions), "a revision is there twice")
    _check(sum(found.percent for found in revisions) in {0, 100}, "the shares do not sum to 100")
    return Endpoint(
        message.id,
        _text(message.name),
        _text(message.project),
        tuple(message.hosts),
        revisions,
        _routing(message.routing),
        _access(message.access),
        message.deleted,
    )


def _check(good: bool, message: str) -> None:  # a condition
    if not good:
        raise TableError(message)


def _text(value: str) -> str:
    _check(value.isprintable() and "%" not in value and len(value) <= _LONGEST_NAME, f"{value[:64]!r} is no name")
    return value


def _revision(message: pb.Revision) -> Revision:
    _check(message.number > 0, f"no revision has the number {message.number}")
    _check(0 <= message.percent <= 100, f"{message.percent} % is no share")  # noqa: PLR2004  # percent
    _check(message.max_concurrency >= 0 and message.queue >= 0, "a limit is negative")
    _check(len(message.replicas) <= _MAX_REPLICAS, "there are too many replicas")
    return Revision(
        message.number,
        message.percent,
        message.protocol == pb.PROTOCOL_HTTP2,
        message.max_concurrency,
        message.queue,
        tuple(map(_replica, message.replicas)),
        message.watched,
    )


def _replica(message: pb.Replica) -> Replica:
    try:
        address = str(ipaddress.ip_address(message.address))
    except ValueError:
        raise TableError(f"{message.address[:64]!r} is no address") from None
    _check(0 < message.port <= _MAX_PORT, f"{message.port} is no port")
    return Replica(message.session_id, address, message.port, message.draining)


def _routing(message: pb.Routing) -> Routing:
    _check(message.algorithm in _ALGORITHMS, f"there is no algorithm {message.algorithm}")
    for name in (message.hash_header, message.hash_cookie, message.affinity_cookie):
        _check(not name or _TOKEN.fullmatch(name) is not None, f"{name[:64]!r} is no name")
    _check(message.hold_limit >= 0, "a limit is negative")
    return Routing(
        _ALGORITHMS[message.algorithm],
        message.hash_header,
        message.hash_cookie,
        message.affinity_cookie,
        _seconds(message.affinity_lifetime),
        _seconds(message.request_timeout),
        _seconds(message.idle_timeout),
        _seconds(message.hold_timeout),
        message.hold_limit,
        message.retry_idempotent,
        _cors(message.cors) if message.HasField("cors") else None,
        _picker(message.picker) if message.algorithm == pb.ALGORITHM_PICKER else None,
    )


def _picker(message: pb.Picker) -> Picker:
    host, colon, port = message.address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    _check(bool(colon) and port.isdecimal() and 0 < int(port) <= _MAX_PORT, f"{message.address[:64]!r} is no address")
    try:
        host = str(ipaddress.ip_address(host))
    except ValueError:
        _check(
            _HOST.fullmatch(host) is not None and not host.startswith("*"), f"{message.address[:64]!r} is no address"
        )
    return Picker(host, int(port), message.ca)


def _cors(message: cors_pb2.Cors) -> Cors:
    for origin in message.origins:
        _check(_ORIGIN.fullmatch(origin) is not None, f"{origin[:64]!r} is no origin")
    for value in (*message.methods, *message.headers):
        _check(_TOKEN.fullmatch(value) is not None, f"{value[:64]!r} is not for a header")
    return Cors(
        tuple(message.origins),
        tuple(message.methods),
        tuple(message.headers),
        message.credentials,
        _seconds(message.max_age),
    )


def _access(message: pb.Access) -> Access:
    period = _seconds(message.rate_period)
    _check(message.rate_requests >= 0 and (not message.rate_requests or period > 0), "the rate is none")
    return Access(
        message.public,
        tuple(message.revoked_token_ids),
        tuple(map(_network, message.source_ranges)),
        message.rate_requests,
        period,
    )


def _network(text: str) -> str:
    """Returns a network as the engine reads it, whatever notation it is in."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise TableError(f"{text[:64]!r} is no network") from None
    _check("%" not in text, f"{text[:64]!r} is of one link only")
    return str(network)


def _seconds(value: Duration) -> float:
    length = times.seconds(value)
    _check(math.isfinite(length) and 0 <= length <= _MAX_SECONDS, f"{length} s is no limit of time")
    return length
