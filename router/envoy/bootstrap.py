"""The engine's first configuration: sockets to the router, and nothing of endpoints."""

from __future__ import annotations

from pathlib import Path

from retinue.proxy.core.fields import ADS_CLUSTER, Json, client_limit, dynamic_resources, typed
from retinue.router.core import names

_UNLIMITED = 1_000_000
_MAX_CLIENTS = 50_000
# What connections of clients leave to those to replicas, to the router and to its sockets.
_CLIENTS_SHARE = 2
_CONNECT = "1s"


def admin_socket(directory: Path, epoch: int) -> Path:
    """Returns the socket of the admin interface of the engine that was started as number `epoch`."""
    return directory / f"admin-{epoch}.sock"


def barrier_socket(directory: Path, epoch: int) -> Path:
    """Returns the socket at which that engine answers on the thread that serves clients."""
    return directory / f"barrier-{epoch}.sock"


def bootstrap(node_id: str, directory: Path, descriptors: int, epoch: int) -> Json:
    """Returns the bootstrap configuration; sockets are in the directory. The engine may have so many descriptors,
    of which connections of clients take a part at most.
    """
    # A router that was started again is found soon: until then there are no changes.
    again = {"retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"}}
    grpc_service = {"envoy_grpc": {"cluster_name": ADS_CLUSTER, "retry_policy": again}}
    return {
        "node": {"id": node_id, "cluster": "retinue"},
        "admin": {"address": _pipe(admin_socket(directory, epoch)), "ignore_global_conn_limit": True},
        "overload_manager": client_limit(min(_MAX_CLIENTS, descriptors // _CLIENTS_SHARE)),
        "dynamic_resources": dynamic_resources(grpc_service),
        "static_resources": {
            "listeners": [_barrier(barrier_socket(directory, epoch))],
            "clusters": [
                _local(ADS_CLUSTER, directory / "ads.sock"),
                _local(names.GATE_CLUSTER, directory / "gate.sock"),
            ],
        },
        "stats_config": {"histogram_bucket_settings": [_buckets()]},
    }


def _barrier(path: Path) -> Json:
    """Returns a listener that answers by itself, on the thread that serves clients."""
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
    routes = {"virtual_hosts": [{"name": "barrier", "domains": ["*"], "routes": [answer]}]}
    http = typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="barrier",
        route_config=routes,
        http_filters=[{"name": "router", "typed_config": typed("extensions.filters.http.router.v3.Router")}],
    )
    return {
        "name": "barrier",
        "address": _pipe(path),
        "ignore_global_conn_limit": True,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": http}]}],
    }


def _buckets() -> Json:
    """Returns the bounds of latencies in milliseconds, which the leader computes quantiles from."""
    bounds = [1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000]
    return {"match": {"safe_regex": {"regex": r"cluster\..*upstream_rq_time"}}, "buckets": bounds}


def _pipe(path: Path) -> Json:
    return {"pipe": {"path": str(path), "mode": 0o600}}


def _local(name: str, path: Path) -> Json:
    """Returns the cluster of a server of the router. The engine's usual limits would hold for held requests, too."""
    limits = {
        "max_connections": _UNLIMITED,
        "max_pending_requests": _UNLIMITED,
        "max_requests": _UNLIMITED,
        "max_retries": _UNLIMITED,
    }
    # A server of the router that is slow for a moment is no attacker: thousands of held requests are as many frames.
    streams = {
        "max_concurrent_streams": _UNLIMITED,
        "max_outbound_frames": _UNLIMITED,
        "max_outbound_control_frames": _UNLIMITED,
    }
    protocol = typed(
        "extensions.upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http2_protocol_options": streams},
    )
    endpoint = {"endpoint": {"address": {"pipe": {"path": str(path)}}}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": _CONNECT,
        "circuit_breakers": {"thresholds": [limits]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
