"""Builds the engine's configuration for connections of browsers that were let in: how they reach a kernel,
and how they are cut. Pure.

The engine ends no stream when its route or its cluster goes, but all connections of a listener that goes. So the
requests of an access go to a listener of its own inside the engine, and from there on as bytes: to a leased port on the
kernel's node or, when nothing takes the connection there, to the manager's relay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envoy.config.cluster.v3.circuit_breaker_pb2 import CircuitBreakers
from envoy.config.cluster.v3.cluster_pb2 import Cluster, UpstreamConnectionOptions
from envoy.config.cluster.v3.outlier_detection_pb2 import OutlierDetection
from envoy.config.core.v3.address_pb2 import Address, EnvoyInternalAddress, TcpKeepalive
from envoy.config.core.v3.backoff_pb2 import BackoffStrategy
from envoy.config.core.v3.protocol_pb2 import Http2ProtocolOptions
from envoy.config.endpoint.v3.endpoint_components_pb2 import Endpoint, LbEndpoint, LocalityLbEndpoints
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_components_pb2 import FilterChain, FilterChainMatch
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.metrics.v3.stats_pb2 import StatsMatcher, StatsSink
from envoy.extensions.bootstrap.internal_listener.v3.internal_listener_pb2 import InternalListener
from envoy.extensions.filters.network.tcp_proxy.v3.tcp_proxy_pb2 import TcpProxy
from envoy.extensions.stat_sinks.open_telemetry.v3.open_telemetry_pb2 import SinkConfig
from envoy.extensions.transport_sockets.tls.v3.common_pb2 import (
    CertificateValidationContext,
    TlsCertificate,
    TlsParameters,
)
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import CommonTlsContext, DownstreamTlsContext
from envoy.type.matcher.v3.string_pb2 import ListStringMatcher, StringMatcher
from envoy.type.v3.percent_pb2 import Percent

from retinue.proxy.core import http
from retinue.proxy.core.fields import (
    FALSE,
    TRUE,
    duration,
    extension,
    network_filter,
    number,
    pack,
    pipe,
    regex,
    socket_address,
    text,
    tls,
)

if TYPE_CHECKING:
    from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
    from envoy.config.core.v3.grpc_service_pb2 import GrpcService

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
_KEEPALIVE = TcpKeepalive(keepalive_probes=number(3), keepalive_time=number(10), keepalive_interval=number(5))

EXTENSION: TypedExtensionConfig = extension("envoy.bootstrap.internal_listener", InternalListener())
# All else would be sent along, every second.
_REPORTED = regex(r"cluster\.kernel/[0-9a-f]+\.upstream_cx_((rx|tx)_bytes_total|active)")
STATISTICS = StatsMatcher(inclusion_list=ListStringMatcher(patterns=[StringMatcher(safe_regex=_REPORTED)]))
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


def sink(call: GrpcService) -> StatsSink:
    """Returns the setting by which the engine reports bytes of accesses, as differences, by calls of this kind."""
    config = SinkConfig(
        grpc_service=call,
        report_counters_as_deltas=True,
        emit_tags_as_attributes=FALSE,
        use_tag_extracted_name=FALSE,
    )
    return StatsSink(name="envoy.stat_sinks.open_telemetry", typed_config=pack(config))


def access_cluster(key: bytes, host: str = "") -> Cluster:
    """Returns the cluster of an access: HTTP, to its listener. Programs see `host` where it is not empty."""
    name = access_name(key)
    place = Address(envoy_internal_address=EnvoyInternalAddress(server_listener_name=name))
    cluster = _static(name, [place], MAX_CONNECTIONS, host)
    cluster.MergeFrom(Cluster(typed_extension_protocol_options=http.programs(idle_seconds=_IDLE_SECONDS)))
    return cluster


def console_cluster(socket: str) -> Cluster:
    """Returns the cluster of the web console: HTTP, to the manager's socket of an abstract name."""
    # Descriptors of the manager: those who only knock at the console leave enough of them for all else.
    cluster = _static(CONSOLE_CLUSTER, [pipe(f"@{socket}")], MAX_CONSOLE_CONNECTIONS)
    cluster.MergeFrom(Cluster(typed_extension_protocol_options=http.programs(idle_seconds=_IDLE_SECONDS)))
    return cluster


def access_listener(key: bytes) -> Listener:
    """Returns the listener of an access, which takes its connections with it when it is removed."""
    proxy = TcpProxy(
        stat_prefix="access",
        cluster=kernel_name(key),
        idle_timeout=duration(0),
        max_connect_attempts=number(_TRIES),
        backoff_options=BackoffStrategy(base_interval=duration(0.01), max_interval=duration(0.1)),
    )
    return Listener(
        name=access_name(key),
        internal_listener=Listener.InternalListenerConfig(),
        per_connection_buffer_limit_bytes=number(BUFFER_BYTES),
        # Browsers are counted where they connect.
        ignore_global_conn_limit=True,
        filter_chains=[FilterChain(filters=[network_filter("tcp", proxy)])],
    )


def tunnel_chain(key: bytes, identity: TunnelIdentity) -> FilterChain:
    """Returns the part of the gateway's listener that is for one tunnel,
    and takes its connections with it when it is removed.

    No handshake ends before the kernel has taken the connection, so that clients learn from it of one that does not.
    """
    chain, private = (part.decode() for part in (identity.certificate, identity.key))
    context = CommonTlsContext(
        tls_params=TlsParameters(tls_minimum_protocol_version=TlsParameters.TLSv1_3),
        tls_certificates=[TlsCertificate(certificate_chain=text(chain), private_key=text(private))],
        # It has no authority but itself. Envoy asks for none at all where it is to accept what is untrusted.
        validation_context=CertificateValidationContext(trusted_ca=text(chain), verify_certificate_hash=[key.hex()]),
    )
    proxy = TcpProxy(stat_prefix="tunnel", cluster=kernel_name(key), idle_timeout=duration(0))
    return FilterChain(
        name=kernel_name(key),
        filter_chain_match=FilterChainMatch(server_names=[identity.name], transport_protocol="tls"),
        transport_socket=tls(DownstreamTlsContext(common_tls_context=context, require_client_certificate=TRUE)),
        filters=[network_filter("tcp", proxy)],
    )


def kernel_cluster(key: bytes, socket: str | None, leased: tuple[str, int] | None) -> Cluster:
    """Returns the cluster of connections: to a leased port, else to the relay if there is one,
    at the socket of an abstract name.
    """
    addresses = [] if socket is None else [pipe(f"@{socket}")]
    if leased is not None:
        addresses.insert(0, socket_address(*leased))
    cluster = _static(kernel_name(key), addresses, _UNLIMITED)
    cluster.MergeFrom(
        Cluster(
            common_lb_config=Cluster.CommonLbConfig(healthy_panic_threshold=Percent(value=0)),
            upstream_connection_options=UpstreamConnectionOptions(tcp_keepalive=_KEEPALIVE),
            outlier_detection=OutlierDetection(
                split_external_local_origin_errors=True,
                consecutive_local_origin_failure=number(1),
                interval=duration(_FIRST_PAUSE_SECONDS),
                base_ejection_time=duration(_FIRST_PAUSE_SECONDS),
                max_ejection_time=duration(_LONGEST_PAUSE_SECONDS),
                max_ejection_percent=number(100),
                enforcing_success_rate=number(0),
                enforcing_local_origin_success_rate=number(0),
                enforcing_consecutive_5xx=number(0),
                enforcing_consecutive_gateway_failure=number(0),
            ),
        )
    )
    return cluster


def service_cluster(name: str, socket: str) -> Cluster:
    """Returns the cluster of a service of the manager, at the socket of an abstract name."""
    cluster = _static(name, [pipe(f"@{socket}")], _UNLIMITED)
    cluster.MergeFrom(Cluster(typed_extension_protocol_options=http.http2_cluster(Http2ProtocolOptions())))
    return cluster


def _static(name: str, addresses: list[Address], connections: int, host: str = "") -> Cluster:
    """Returns a cluster whose addresses are tried in this order, with so many connections, and requests that wait for
    one. The engine's usual limits are for many clients of one program.
    """
    limits = CircuitBreakers.Thresholds(
        max_connections=number(connections),
        max_pending_requests=number(connections),
        max_requests=number(_UNLIMITED),
        max_retries=number(_UNLIMITED),
    )
    endpoints = [
        LocalityLbEndpoints(
            priority=priority, lb_endpoints=[LbEndpoint(endpoint=Endpoint(address=address, hostname=host))]
        )
        for priority, address in enumerate(addresses)
    ]
    return Cluster(
        name=name,
        type=Cluster.STATIC,
        connect_timeout=duration(_CONNECT_SECONDS),
        per_connection_buffer_limit_bytes=number(BUFFER_BYTES),
        circuit_breakers=CircuitBreakers(thresholds=[limits]),
        load_assignment=ClusterLoadAssignment(cluster_name=name, endpoints=endpoints),
    )
