"""The engine's first configuration: sockets to the router, and nothing of endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envoy.config.bootstrap.v3.bootstrap_pb2 import Admin, Bootstrap
from envoy.config.cluster.v3.circuit_breaker_pb2 import CircuitBreakers
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.backoff_pb2 import BackoffStrategy
from envoy.config.core.v3.base_pb2 import Node, RetryPolicy
from envoy.config.core.v3.grpc_service_pb2 import GrpcService
from envoy.config.core.v3.protocol_pb2 import Http2ProtocolOptions
from envoy.config.endpoint.v3.endpoint_components_pb2 import Endpoint, LbEndpoint, LocalityLbEndpoints
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_components_pb2 import FilterChain
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.metrics.v3.stats_pb2 import HistogramBucketSettings, StatsConfig
from envoy.config.route.v3.route_components_pb2 import DirectResponseAction, Route, RouteMatch, VirtualHost
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
    HttpFilter,
)
from envoy.type.matcher.v3.string_pb2 import StringMatcher

from retinue.proxy.core import http
from retinue.proxy.core.fields import (
    ADS_CLUSTER,
    client_limit,
    duration,
    dynamic_resources,
    network_filter,
    number,
    pack,
    pipe,
    regex,
)
from retinue.router.core import names

if TYPE_CHECKING:
    from pathlib import Path

_UNLIMITED = 1_000_000
_MAX_CLIENTS = 50_000
# What connections of clients leave to those to replicas, to the router and to its sockets.
_CLIENTS_SHARE = 2
_CONNECT_SECONDS = 1
_OWNER_ONLY = 0o600


def admin_socket(directory: Path, epoch: int) -> Path:
    """Returns the socket of the admin interface of the engine that was started as number `epoch`."""
    return directory / f"admin-{epoch}.sock"


def barrier_socket(directory: Path, epoch: int) -> Path:
    """Returns the socket at which that engine answers on the thread that serves clients."""
    return directory / f"barrier-{epoch}.sock"


def bootstrap(node_id: str, directory: Path, descriptors: int, epoch: int) -> Bootstrap:
    """Returns the bootstrap configuration; sockets are in the directory. The engine may have so many descriptors,
    of which connections of clients take a part at most.
    """
    # A router that was started again is found soon: until then there are no changes.
    again = RetryPolicy(retry_back_off=BackoffStrategy(base_interval=duration(0.1), max_interval=duration(1)))
    ads = GrpcService(envoy_grpc=GrpcService.EnvoyGrpc(cluster_name=ADS_CLUSTER, retry_policy=again))
    return Bootstrap(
        node=Node(id=node_id, cluster="retinue"),
        admin=Admin(address=pipe(str(admin_socket(directory, epoch)), _OWNER_ONLY), ignore_global_conn_limit=True),
        overload_manager=client_limit(min(_MAX_CLIENTS, descriptors // _CLIENTS_SHARE)),
        dynamic_resources=dynamic_resources(ads),
        static_resources=Bootstrap.StaticResources(
            listeners=[_barrier(barrier_socket(directory, epoch))],
            clusters=[
                _local(ADS_CLUSTER, directory / "ads.sock"),
                _local(names.GATE_CLUSTER, directory / "gate.sock"),
            ],
        ),
        stats_config=StatsConfig(histogram_bucket_settings=[_buckets()]),
    )


def _barrier(path: Path) -> Listener:
    """Returns a listener that answers by itself, on the thread that serves clients."""
    answer = Route(match=RouteMatch(prefix="/"), direct_response=DirectResponseAction(status=200))
    routes = RouteConfiguration(virtual_hosts=[VirtualHost(name="barrier", domains=["*"], routes=[answer])])
    manager = HttpConnectionManager(
        stat_prefix="barrier",
        route_config=routes,
        http_filters=[HttpFilter(name="router", typed_config=pack(Router()))],
    )
    return Listener(
        name="barrier",
        address=pipe(str(path), _OWNER_ONLY),
        ignore_global_conn_limit=True,
        filter_chains=[FilterChain(filters=[network_filter("http", manager)])],
    )


def _buckets() -> HistogramBucketSettings:
    """Returns the bounds of latencies in milliseconds, which the leader computes quantiles from."""
    bounds = [1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000]
    times = StringMatcher(safe_regex=regex(r"cluster\..*upstream_rq_time"))
    return HistogramBucketSettings(match=times, buckets=bounds)


def _local(name: str, path: Path) -> Cluster:
    """Returns the cluster of a server of the router. The engine's usual limits would hold for held requests, too."""
    unlimited = number(_UNLIMITED)
    limits = CircuitBreakers.Thresholds(
        max_connections=unlimited, max_pending_requests=unlimited, max_requests=unlimited, max_retries=unlimited
    )
    # A server of the router that is slow for a moment is no attacker: thousands of held requests are as many frames.
    streams = Http2ProtocolOptions(
        max_concurrent_streams=unlimited, max_outbound_frames=unlimited, max_outbound_control_frames=unlimited
    )
    server = LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=Endpoint(address=pipe(str(path))))])
    return Cluster(
        name=name,
        type=Cluster.STATIC,
        connect_timeout=duration(_CONNECT_SECONDS),
        circuit_breakers=CircuitBreakers(thresholds=[limits]),
        typed_extension_protocol_options=http.http2_cluster(streams),
        load_assignment=ClusterLoadAssignment(cluster_name=name, endpoints=[server]),
    )
