"""Builds the engine's configuration for connections of browsers that were let in: how they reach a kernel,
and how they are cut. Pure.

The engine ends no stream when its route or its cluster goes, but all connections of a listener that goes. So the
requests of an access go to a listener of its own inside the engine, and from there on as bytes: to a leased port on the
kernel's node or, when nothing takes the connection there, to the manager's relay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from retinue.proxy.core import http
from retinue.proxy.core.fields import Json, duration, typed

TRAFFIC_CLUSTER, CONSOLE_CLUSTER = "traffic", "console"
TRAFFIC_SECONDS = 1
MAX_CONNECTIONS = 128
"""Connections of one access, and requests that wait for one."""
MAX_CONSOLE_CONNECTIONS = 4096
"""Requests and websockets of all browsers at once, and as many that wait."""
BUFFER_BYTES = 512 << 10
"""Of a connection. Of a stream that is not read, four of them are full."""

_CONNECT_SECONDS = 2
# Of a connection to a kernel: through the relay, it is made again at some cost.
_IDLE_SECONDS = 30
_UNLIMITED = 1_000_000
_TRIES = 4
# How long a leased port that refused a connection is passed by.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1, 5
_KEEPALIVE = {"keepalive_probes": 3, "keepalive_time": 10, "keepalive_interval": 5}

EXTENSION: Json = {
    "name": "envoy.bootstrap.internal_listener",
    "typed_config": typed("extensions.bootstrap.internal_listener.v3.InternalListener"),
}
# All else would be sent along, every second.
STATISTICS: Json = {
    "inclusion_list": {
        "patterns": [{"safe_regex": {"regex": r"cluster\.kernel/[0-9a-f]+\.upstream_cx_((rx|tx)_bytes_total|active)"}}]
    }
}
_COUNTER = re.compile(r"(?:cluster\.)?kernel/([0-9a-f]+)\.upstream_cx_(?:rx|tx)_bytes_total")
_GAUGE = re.compile(r"(?:cluster\.)?kernel/([0-9a-f]+)\.upstream_cx_active")


@dataclass(frozen=True, slots=True)
class TunnelIdentity:
    """What both ends of a tunnel prove to each other: a certificate for a name, and its key, in PEM."""

    name: str
    certificate: bytes
    key: bytes = field(repr=False)


def access_name(key: bytes) -> str:
    """Returns the name of the cluster that requests of an access go to, and of the listener behind it."""
    return f"access/{key.hex()}"


def kernel_name(key: bytes) -> str:
    """Returns the name of the cluster that connections of an access go to."""
    return f"kernel/{key.hex()}"


def parse_counter(name: str) -> bytes | None:
    """Returns the access whose bytes a counter counts; None for any other."""
    found = _COUNTER.fullmatch(name)
    return None if found is None else bytes.fromhex(found[1])


def parse_gauge(name: str) -> bytes | None:
    """Returns the access whose connections a gauge counts; None for any other."""
    found = _GAUGE.fullmatch(name)
    return None if found is None else bytes.fromhex(found[1])


def sink(call: Json) -> Json:
    """Returns the setting by which the engine reports bytes of accesses, as differences, by calls of this kind."""
    config = typed(
        "extensions.stat_sinks.open_telemetry.v3.SinkConfig",
        grpc_service=call,
        report_counters_as_deltas=True,
        emit_tags_as_attributes=False,
        use_tag_extracted_name=False,
    )
    return {"name": "envoy.stat_sinks.open_telemetry", "typed_config": config}


def access_cluster(key: bytes, host: str = "") -> Json:
    """Returns the cluster of an access: HTTP, to its listener. Programs see `host` where it is not empty."""
    name = access_name(key)
    limits = {
        "max_connections": MAX_CONNECTIONS,
        "max_pending_requests": MAX_CONNECTIONS,
        "max_requests": _UNLIMITED,
        "max_retries": _UNLIMITED,
    }
    return {
        **_static(name, [{"envoy_internal_address": {"server_listener_name": name}}], limits, host),
        "typed_extension_protocol_options": http.programs(idle_seconds=_IDLE_SECONDS),
    }


def console_cluster(socket: str) -> Json:
    """Returns the cluster of the web console: HTTP, to the manager's socket of an abstract name."""
    # Descriptors of the manager: those who only knock at the console leave enough of them for all else.
    limits = {
        "max_connections": MAX_CONSOLE_CONNECTIONS,
        "max_pending_requests": MAX_CONSOLE_CONNECTIONS,
        "max_requests": _UNLIMITED,
        "max_retries": _UNLIMITED,
    }
    return {
        **_static(CONSOLE_CLUSTER, [{"pipe": {"path": f"@{socket}"}}], limits),
        "typed_extension_protocol_options": http.programs(idle_seconds=_IDLE_SECONDS),
    }


def access_listener(key: bytes) -> Json:
    """Returns the listener of an access, which takes its connections with it when it is removed."""
    proxy = typed(
        "extensions.filters.network.tcp_proxy.v3.TcpProxy",
        stat_prefix="access",
        cluster=kernel_name(key),
        idle_timeout=duration(0),
        max_connect_attempts=_TRIES,
        backoff_options={"base_interval": duration(0.01), "max_interval": duration(0.1)},
    )
    return {
        "name": access_name(key),
        "internal_listener": {},
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        # Browsers are counted where they connect.
        "ignore_global_conn_limit": True,
        "filter_chains": [{"filters": [{"name": "tcp", "typed_config": proxy}]}],
    }


def tunnel_chain(key: bytes, identity: TunnelIdentity) -> Json:
    """Returns the part of the gateway's listener that is for one tunnel,
    and takes its connections with it when it is removed.

    No handshake ends before the kernel has taken the connection, so that clients learn from it of one that does not.
    """
    chain, private = (part.decode() for part in (identity.certificate, identity.key))
    context = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_3"},
        "tls_certificates": [
            {"certificate_chain": {"inline_string": chain}, "private_key": {"inline_string": private}}
        ],
        # It has no authority but itself. Envoy asks for none at all where it is to accept what is untrusted.
        "validation_context": {"trusted_ca": {"inline_string": chain}, "verify_certificate_hash": [key.hex()]},
    }
    tls = typed(
        "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context=context,
        require_client_certificate=True,
    )
    proxy = typed(
        "extensions.filters.network.tcp_proxy.v3.TcpProxy",
        stat_prefix="tunnel",
        cluster=kernel_name(key),
        idle_timeout=duration(0),
    )
    return {
        "name": kernel_name(key),
        "filter_chain_match": {"server_names": [identity.name], "transport_protocol": "tls"},
        "transport_socket": {"name": "tls", "typed_config": tls},
        "filters": [{"name": "tcp", "typed_config": proxy}],
    }


def kernel_cluster(key: bytes, socket: str | None, leased: tuple[str, int] | None) -> Json:
    """Returns the cluster of connections: to a leased port, else to the relay if there is one,
    at the socket of an abstract name.
    """
    addresses: list[Json] = [] if socket is None else [{"pipe": {"path": f"@{socket}"}}]
    if leased is not None:
        addresses.insert(0, {"socket_address": {"address": leased[0], "port_value": leased[1]}})
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _UNLIMITED)
    return {
        **_static(kernel_name(key), addresses, limits),
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "upstream_connection_options": {"tcp_keepalive": _KEEPALIVE},
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            "interval": duration(_FIRST_PAUSE_SECONDS),
            "base_ejection_time": duration(_FIRST_PAUSE_SECONDS),
            "max_ejection_time": duration(_LONGEST_PAUSE_SECONDS),
            "max_ejection_percent": 100,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
        },
    }


def pipe(name: str, socket: str) -> Json:
    """Returns the cluster of a service of the manager, at the socket of an abstract name."""
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _UNLIMITED)
    options = typed(http.HTTP_OPTIONS.removeprefix("envoy."), explicit_http_config={"http2_protocol_options": {}})
    return {
        **_static(name, [{"pipe": {"path": f"@{socket}"}}], limits),
        "typed_extension_protocol_options": {http.HTTP_OPTIONS: options},
    }


def _static(name: str, addresses: list[Json], limits: Json, host: str = "") -> Json:
    """Returns a cluster whose addresses are tried in this order. The engine's usual limits
    are for many clients of one program.
    """
    endpoints = [
        {"priority": priority, "lb_endpoints": [{"endpoint": {"address": address, "hostname": host}}]}
        for priority, address in enumerate(addresses)
    ]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": duration(_CONNECT_SECONDS),
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
    }
