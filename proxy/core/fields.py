"""Builds parts of Envoy's configuration that every proxy has, as its own messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap
from envoy.config.core.v3.address_pb2 import Address, CidrRange, Pipe, SocketAddress
from envoy.config.core.v3.base_pb2 import DataSource, TransportSocket
from envoy.config.core.v3.config_source_pb2 import AggregatedConfigSource, ApiConfigSource, ApiVersion, ConfigSource
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.config.listener.v3.listener_components_pb2 import Filter
from envoy.config.overload.v3.overload_pb2 import OverloadManager, ResourceMonitor
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.resource_monitors.downstream_connections.v3.downstream_connections_pb2 import (
    DownstreamConnectionsConfig,
)
from envoy.extensions.transport_sockets.tls.v3.common_pb2 import TlsCertificate
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import SdsSecretConfig, Secret
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import CommonTlsContext, DownstreamTlsContext
from envoy.type.matcher.v3.regex_pb2 import RegexMatcher
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import BoolValue, UInt32Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envoy.config.core.v3.grpc_service_pb2 import GrpcService
    from envoy.config.route.v3.route_components_pb2 import VirtualHost
    from google.protobuf.message import Message

ADS_CLUSTER = "ads"
ADS = ConfigSource(ads=AggregatedConfigSource(), resource_api_version=ApiVersion.V3)
TRUE, FALSE = BoolValue(value=True), BoolValue(value=False)


def pack(message: Message) -> AnyMessage:
    """Returns a message inside an Any; equal messages give equal bytes."""
    packed = AnyMessage()
    packed.Pack(message, deterministic=True)
    return packed


def duration(seconds: float) -> Duration:
    """Returns a length of time, to the millisecond."""
    whole, rest = divmod(round(seconds * 1000), 1000)
    return Duration(seconds=whole, nanos=rest * 1_000_000)


def number(value: int) -> UInt32Value:
    """Returns a number that is there even when it is 0."""
    return UInt32Value(value=value)


def text(value: str) -> DataSource:
    """Returns a text that is in the configuration itself."""
    return DataSource(inline_string=value)


def regex(expression: str) -> RegexMatcher:
    """Returns what matches whole texts only."""
    return RegexMatcher(regex=expression)


def struct(values: Mapping[str, Any]) -> Struct:
    """Returns a JSON object."""
    made = Struct()
    made.update(dict(values))
    return made


def extension(name: str, settings: Message) -> TypedExtensionConfig:
    """Returns an extension of the engine with its settings."""
    return TypedExtensionConfig(name=name, typed_config=pack(settings))


def network_filter(name: str, settings: Message) -> Filter:
    """Returns a filter of bytes of a connection."""
    return Filter(name=name, typed_config=pack(settings))


def socket_address(address: str, port: int) -> Address:
    """Returns a TCP address."""
    return Address(socket_address=SocketAddress(address=address, port_value=port))


def pipe(path: str, mode: int = 0) -> Address:
    """Returns a socket of this machine: a path, or `@` and an abstract name."""
    return Address(pipe=Pipe(path=path, mode=mode))


def cidr(network: str) -> CidrRange:
    """Returns a network in CIDR notation as a message."""
    address, _, length = network.partition("/")
    longest = 128 if ":" in address else 32
    return CidrRange(address_prefix=address, prefix_len=number(int(length) if length else longest))


def dynamic_resources(grpc_service: GrpcService) -> Bootstrap.DynamicResources:
    """Returns where clusters and listeners come from: delta ADS of a service."""
    ads = ApiConfigSource(
        api_type=ApiConfigSource.DELTA_GRPC, transport_api_version=ApiVersion.V3, grpc_services=[grpc_service]
    )
    return Bootstrap.DynamicResources(ads_config=ads, cds_config=ADS, lds_config=ADS)


def client_limit(connections: int) -> OverloadManager:
    """Returns the overload manager that closes connections of clients beyond so many, when they come."""
    limit = DownstreamConnectionsConfig(max_active_downstream_connections=connections)
    name = "envoy.resource_monitors.global_downstream_max_connections"
    return OverloadManager(resource_monitors=[ResourceMonitor(name=name, typed_config=pack(limit))])


def tls(context: Message) -> TransportSocket:
    """Returns the transport socket of either side of TLS."""
    return TransportSocket(name="tls", typed_config=pack(context))


def server_tls(certificate: str) -> TransportSocket:
    """Returns the transport socket of a listener for HTTP/2 and HTTP/1.1,
    whose certificate is the secret of this name.
    """
    context = CommonTlsContext(
        alpn_protocols=["h2", "http/1.1"],
        tls_certificate_sds_secret_configs=[SdsSecretConfig(name=certificate, sds_config=ADS)],
    )
    return tls(DownstreamTlsContext(common_tls_context=context))


def certificate_secret(name: str, chain: str, key: str) -> Secret:
    """Returns a certificate as a secret: chain and key in PEM."""
    return Secret(name=name, tls_certificate=TlsCertificate(certificate_chain=text(chain), private_key=text(key)))


def route_configuration(name: str, hosts: list[VirtualHost], *, any_port: bool = False) -> RouteConfiguration:
    """Returns the route configuration of virtual hosts; with `any_port` the number after a name does not count."""
    return RouteConfiguration(
        name=name, virtual_hosts=hosts, ignore_port_in_host_matching=any_port, validate_clusters=FALSE
    )
