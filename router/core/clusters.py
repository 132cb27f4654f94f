"""A cluster per revision, and the replicas in it."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.proxy.core import http
from retinue.proxy.core.fields import ADS, Json, duration, typed
from retinue.router.core import names
from retinue.router.core.picker import picked
from retinue.router.core.table import Algorithm, Replica, Revision, Routing

_CONNECT_SECONDS = 1
# Shorter than servers keep idle connections (gunicorn 2 s, uvicorn 5 s),
# so that no request meets a connection that is being closed.
_IDLE_SECONDS = 1.5
_SLOW_START_SECONDS = 10
_UNLIMITED = 1_000_000
# Below so many at once a budget protects no replica, and refuses requests that a replica that died has never got.
_RETRY_PERCENT, _RETRIES_AT_LEAST = 20, 100
_CONNECT_FAILURES, _GATEWAY_ERRORS, _EJECTION_SECONDS, _EJECTED_PERCENT = 3, 5, 5, 50


def cluster(endpoint_id: str, revision: Revision, routing: Routing) -> Json:
    """Returns the cluster of a revision, without its replicas."""
    return {
        "name": names.cluster_name(endpoint_id, revision.number),
        "type": "EDS",
        "eds_cluster_config": {"eds_config": ADS},
        "connect_timeout": duration(_CONNECT_SECONDS),
        **_choice(routing.algorithm),
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "ignore_health_on_host_removal": True,
        "circuit_breakers": _limits(revision),
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": _CONNECT_FAILURES,
            "enforcing_consecutive_local_origin_failure": 100,
            "consecutive_gateway_failure": _GATEWAY_ERRORS,
            "enforcing_consecutive_gateway_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "interval": "1s",
            "base_ejection_time": duration(_EJECTION_SECONDS),
            "max_ejection_percent": _EJECTED_PERCENT,
        },
        "typed_extension_protocol_options": _protocol(revision),
    }


def assignment(name: str, replicas: Iterable[Replica]) -> Json:
    """Returns the replicas of a cluster, each address once; those that drain get nothing new."""
    places = {(replica.address, replica.port): replica for replica in replicas}
    hosts = [_host(replica) for _, replica in sorted(places.items())]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}] if hosts else []}


def _host(replica: Replica) -> Json:
    address = {"socket_address": {"address": replica.address, "port_value": replica.port}}
    host: Json = {"endpoint": {"address": address}}
    if replica.draining:
        host["health_status"] = "DRAINING"
    return host


def _choice(algorithm: Algorithm) -> Json:
    slow_start: Json = {"slow_start_window": duration(_SLOW_START_SECONDS)}
    fields: Json
    match algorithm:
        case Algorithm.ROUND_ROBIN:
            name, fields = "round_robin", {"slow_start_config": slow_start}
        case Algorithm.HASH:
            name, fields = "maglev", {}
        case Algorithm.LEAST_REQUEST | Algorithm.PICKER:
            name, fields = "least_request", {"selection_method": "FULL_SCAN", "slow_start_config": slow_start}
    kind = f"extensions.load_balancing_policies.{name}.v3.{name.title().replace('_', '')}"
    policy = {"name": f"envoy.load_balancing_policies.{name}", "typed_config": typed(kind, **fields)}
    policies = {"policies": [{"typed_extension_config": policy}]}
    if algorithm is Algorithm.PICKER:
        override = {"name": "envoy.load_balancing_policies.override_host", "typed_config": picked(policies)}
        policies = {"policies": [{"typed_extension_config": override}]}
    return {"load_balancing_policy": policies}


def _limits(revision: Revision) -> Json:
    """Returns the limits: strict ones of HTTP/1.1 are connections per replica, of which each has one request."""
    strict = revision.max_concurrency > 0
    thresholds = {
        "max_connections": _UNLIMITED,
        "max_pending_requests": max(revision.queue, 1) if strict else _UNLIMITED,
        "max_requests": _UNLIMITED,
        "retry_budget": {"budget_percent": {"value": _RETRY_PERCENT}, "min_retry_concurrency": _RETRIES_AT_LEAST},
    }
    limits: Json = {"thresholds": [thresholds]}
    if strict:
        limits["per_host_thresholds"] = [{"max_connections": 1 if revision.http2 else revision.max_concurrency}]
    return limits


def _protocol(revision: Revision) -> Json:
    if not revision.http2:
        return http.programs(idle_seconds=_IDLE_SECONDS)
    streams = {"max_concurrent_streams": revision.max_concurrency} if revision.max_concurrency else {}
    return http.programs(idle_seconds=_IDLE_SECONDS, http2=streams)
