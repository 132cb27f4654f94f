"""Writes the table as messages to routers, and reads what they answer:
a message that makes no sense is an error of its router only.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from retinue.manager.domain.endpoints.model import (
    AccessMode,
    Algorithm,
    AppProtocol,
    Cors,
    HashSource,
    RevisionTraffic,
    RoutedEndpoint,
    RoutedRevision,
    RoutingPolicy,
)
from retinue.manager.domain.endpoints.states import ReplicaState
from retinue.router.v1 import router_service_pb2 as pb
from retinue.rpc.times import milliseconds, seconds
from retinue.types.v1 import cors_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping


_ALGORITHMS = {
    Algorithm.LEAST_REQUEST: pb.ALGORITHM_LEAST_REQUEST,
    Algorithm.ROUND_ROBIN: pb.ALGORITHM_ROUND_ROBIN,
    Algorithm.HASH: pb.ALGORITHM_HASH,
    Algorithm.PICKER: pb.ALGORITHM_PICKER,
}
_MAX_COUNT = 2**53


class ProtocolError(Exception):
    """A router sent what makes no sense."""


def endpoint_message(endpoint: RoutedEndpoint, domain: str) -> pb.Endpoint:
    """Returns an endpoint as routers get it; limits of replicas are shared by the routers, rounded up."""
    access = endpoint.access
    return pb.Endpoint(
        id=str(endpoint.id),
        name=endpoint.name,
        project=endpoint.project,
        hosts=[f"{endpoint.host_label}.{domain}", *endpoint.routing.hosts],
        deleted=endpoint.deleted,
        revisions=[_revision(revision, endpoint.routers, gate=endpoint.gate) for revision in endpoint.revisions],
        routing=_routing(endpoint.routing),
        access=pb.Access(
            public=access.mode is AccessMode.PUBLIC,
            revoked_token_ids=endpoint.revoked,
            source_ranges=access.source_ranges,
            rate_requests=0 if access.per_token is None else access.per_token.requests,
            rate_period=milliseconds(0 if access.per_token is None else access.per_token.period_ms),
        ),
    )


def _revision(revision: RoutedRevision, routers: int, *, gate: bool) -> pb.Revision:
    """Returns a revision. Behind the gate no replica takes new requests, whatever state it is in."""
    http1 = revision.protocol is AppProtocol.HTTP1
    return pb.Revision(
        number=revision.number,
        percent=revision.weight,
        protocol=pb.PROTOCOL_HTTP1 if http1 else pb.PROTOCOL_HTTP2,
        max_concurrency=-(-revision.max_concurrency // max(1, routers)),
        queue=revision.queue,
        replicas=[
            pb.Replica(
                session_id=str(replica.session_id),
                address=replica.address,
                port=replica.port,
                draining=gate or replica.state is not ReplicaState.READY,
            )
            for replica in revision.replicas
        ],
        watched=revision.watched,
    )


def _routing(policy: RoutingPolicy) -> pb.Routing:
    hashed = policy.algorithm is Algorithm.HASH
    affinity = policy.affinity
    return pb.Routing(
        algorithm=_ALGORITHMS[policy.algorithm],
        hash_header=policy.hash_name if hashed and policy.hash_source is HashSource.HEADER else "",
        hash_cookie=policy.hash_name if hashed and policy.hash_source is HashSource.COOKIE else "",
        affinity_cookie="" if affinity is None else affinity.cookie,
        affinity_lifetime=milliseconds(0 if affinity is None else affinity.lifetime_ms),
        request_timeout=milliseconds(policy.request_timeout_ms),
        idle_timeout=milliseconds(policy.idle_timeout_ms),
        hold_timeout=milliseconds(policy.hold_timeout_ms),
        hold_limit=policy.hold_limit,
        retry_idempotent=policy.retry_idempotent,
        picker=pb.Picker(address=policy.picker_address, ca=policy.picker_ca)
        if policy.algorithm is Algorithm.PICKER
        else None,
        cors=None if policy.cors is None else _cors(policy.cors),
    )


def _cors(cors: Cors) -> cors_pb2.Cors:
    return cors_pb2.Cors(
        origins=cors.origins,
        methods=cors.methods,
        headers=cors.headers,
        credentials=cors.credentials,
        max_age=milliseconds(cors.max_age_ms),
    )


def read_revisions(traffic: pb.Traffic) -> dict[tuple[uuid.UUID, int], RevisionTraffic]:
    """Returns the counts per revision. Raises ProtocolError."""
    return {
        (read_id(found.endpoint_id), found.revision): RevisionTraffic(
            _count(found.active),
            _count(found.pending),
            _count(found.requests),
            _count(found.errors),
            tuple((_bound(seconds(bucket.upper_bound) * 1000), _count(bucket.count)) for bucket in found.buckets),
        )
        for found in traffic.revisions
    }


def read_held(traffic: pb.Traffic) -> Mapping[uuid.UUID, int]:
    """Returns requests held per endpoint. Raises ProtocolError."""
    return {read_id(found.endpoint_id): _count(found.count) for found in traffic.held}


def read_draining(traffic: pb.Traffic) -> Mapping[uuid.UUID, int]:
    """Returns requests per draining session. Raises ProtocolError."""
    return {read_id(found.session_id): _count(found.active) for found in traffic.draining}


def read_answered(traffic: pb.Traffic) -> Mapping[uuid.UUID, int]:
    """Returns requests answered so far per watched session. Raises ProtocolError."""
    return {read_id(found.session_id): _count(found.answered) for found in traffic.watched}


def read_id(value: str) -> uuid.UUID:
    """Returns an id. Raises ProtocolError."""
    try:
        return uuid.UUID(value)
    except ValueError:
        raise ProtocolError(f"{value[:64]!r} is no id") from None


def _count(value: int) -> int:
    if not 0 <= value <= _MAX_COUNT:
        raise ProtocolError(f"{value} is no count")
    return value


def _bound(value: float) -> int:
    if not 0 <= value <= _MAX_COUNT:
        raise ProtocolError(f"{value} ms is no bound")
    return max(1, round(value))
