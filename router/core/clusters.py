"""A cluster per revision, and the replicas in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envoy.config.cluster.v3.circuit_breaker_pb2 import CircuitBreakers
from envoy.config.cluster.v3.cluster_pb2 import Cluster, LoadBalancingPolicy
from envoy.config.cluster.v3.outlier_detection_pb2 import OutlierDetection
from envoy.config.core.v3.health_check_pb2 import HealthStatus
from envoy.config.core.v3.protocol_pb2 import Http2ProtocolOptions
from envoy.config.endpoint.v3.endpoint_components_pb2 import Endpoint as Place
from envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint, LocalityLbEndpoints
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.extensions.load_balancing_policies.common.v3.common_pb2 import SlowStartConfig
from envoy.extensions.load_balancing_policies.least_request.v3.least_request_pb2 import LeastRequest
from envoy.extensions.load_balancing_policies.maglev.v3.maglev_pb2 import Maglev
from envoy.extensions.load_balancing_policies.round_robin.v3.round_robin_pb2 import RoundRobin
from envoy.type.v3.percent_pb2 import Percent

from retinue.proxy.core import http
from retinue.proxy.core.fields import ADS, duration, extension, number, socket_address
from retinue.router.core import names
from retinue.router.core.picker import picked
from retinue.router.core.table import Algorithm, Replica, Revision, Routing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.any_pb2 import Any as AnyMessage
    from google.protobuf.message import Message

_CONNECT_SECONDS = 1
# Shorter than servers keep idle connections (gunicorn 2 s, uvicorn 5 s),
# so that no request meets a connection that is being closed.
_IDLE_SECONDS = 1.5
_SLOW_START_SECONDS = 10
_UNLIMITED = 1_000_000
# Below so many at once a budget protects no replica, and refuses requests that a replica that died has never got.
_RETRY_PERCENT, _RETRIES_AT_LEAST = 20, 100
_CONNECT_FAILURES, _GATEWAY_ERRORS, _EJECTION_SECONDS, _EJECTED_PERCENT = 3, 5, 5, 50


def cluster(endpoint_id: str, revision: Revision, routing: Routing) -> Cluster:
    """Returns the cluster of a revision, without its replicas."""
    return Cluster(
        name=names.cluster_name(endpoint_id, revision.number),
        type=Cluster.EDS,
        eds_cluster_config=Cluster.EdsClusterConfig(eds_config=ADS),
        connect_timeout=duration(_CONNECT_SECONDS),
        load_balancing_policy=_choice(routing.algorithm),
        common_lb_config=Cluster.CommonLbConfig(healthy_panic_threshold=Percent(value=0)),
        ignore_health_on_host_removal=True,
        circuit_breakers=_limits(revision),
        outlier_detection=OutlierDetection(
            split_external_local_origin_errors=True,
            consecutive_local_origin_failure=number(_CONNECT_FAILURES),
            enforcing_consecutive_local_origin_failure=number(100),
            consecutive_gateway_failure=number(_GATEWAY_ERRORS),
            enforcing_consecutive_gateway_failure=number(100),
            enforcing_consecutive_5xx=number(0),
            enforcing_success_rate=number(0),
            enforcing_local_origin_success_rate=number(0),
            interval=duration(1),
            base_ejection_time=duration(_EJECTION_SECONDS),
            max_ejection_percent=number(_EJECTED_PERCENT),
        ),
        typed_extension_protocol_options=_protocol(revision),
    )


def assignment(name: str, replicas: Iterable[Replica]) -> ClusterLoadAssignment:
    """Returns the replicas of a cluster, each address once; those that drain get nothing new."""
    places = {(replica.address, replica.port): replica for replica in replicas}
    return assigned(name, [_host(replica) for _, replica in sorted(places.items())])


def assigned(name: str, hosts: list[LbEndpoint]) -> ClusterLoadAssignment:
    """Returns an assignment of these hosts."""
    groups = [LocalityLbEndpoints(lb_endpoints=hosts)] if hosts else []
    return ClusterLoadAssignment(cluster_name=name, endpoints=groups)


def _host(replica: Replica) -> LbEndpoint:
    return LbEndpoint(
        endpoint=Place(address=socket_address(replica.address, replica.port)),
        health_status=HealthStatus.DRAINING if replica.draining else HealthStatus.UNKNOWN,
    )


def _choice(algorithm: Algorithm) -> LoadBalancingPolicy:
    slow_start = SlowStartConfig(slow_start_window=duration(_SLOW_START_SECONDS))
    match algorithm:
        case Algorithm.ROUND_ROBIN:
            return _policy("round_robin", RoundRobin(slow_start_config=slow_start))
        case Algorithm.HASH:
            return _policy("maglev", Maglev())
        case Algorithm.LEAST_REQUEST | Algorithm.PICKER:
            fewest = LeastRequest(selection_method=LeastRequest.FULL_SCAN, slow_start_config=slow_start)
            policy = _policy("least_request", fewest)
            return _policy("override_host", picked(policy)) if algorithm is Algorithm.PICKER else policy


def _policy(name: str, settings: Message) -> LoadBalancingPolicy:
    config = extension(f"envoy.load_balancing_policies.{name}", settings)
    return LoadBalancingPolicy(policies=[LoadBalancingPolicy.Policy(typed_extension_config=config)])


def _limits(revision: Revision) -> CircuitBreakers:
    """Returns the limits: strict ones of HTTP/1.1 are connections per replica, of which each has one request."""
    strict = revision.max_concurrency > 0
    budget = CircuitBreakers.Thresholds.RetryBudget(
        budget_percent=Percent(value=_RETRY_PERCENT), min_retry_concurrency=number(_RETRIES_AT_LEAST)
    )
    thresholds = CircuitBreakers.Thresholds(
        max_connections=number(_UNLIMITED),
        max_pending_requests=number(max(revision.queue, 1) if strict else _UNLIMITED),
        max_requests=number(_UNLIMITED),
        retry_budget=budget,
    )
    limits = CircuitBreakers(thresholds=[thresholds])
    if strict:
        limits.per_host_thresholds.add(max_connections=number(1 if revision.http2 else revision.max_concurrency))
    return limits


def _protocol(revision: Revision) -> dict[str, AnyMessage]:
    if not revision.http2:
        return http.programs(idle_seconds=_IDLE_SECONDS)
    limit = number(revision.max_concurrency) if revision.max_concurrency else None
    return http.programs(idle_seconds=_IDLE_SECONDS, http2=Http2ProtocolOptions(max_concurrent_streams=limit))
