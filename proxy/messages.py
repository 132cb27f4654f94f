"""Makes protobuf messages of resources in JSON form; a field that does not exist is an error here,
not in the engine.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from retinue.proxy.core.fields import Json

# Messages inside an Any are found by name once their modules are imported.
for _module in (
    "extensions.access_loggers.file.v3.file_pb2",
    "extensions.common.matching.v3.extension_matcher_pb2",
    "extensions.filters.common.matcher.action.v3.skip_action_pb2",
    "extensions.filters.http.cors.v3.cors_pb2",
    "extensions.filters.http.ext_authz.v3.ext_authz_pb2",
    "extensions.filters.http.ext_proc.v3.ext_proc_pb2",
    "extensions.filters.http.header_mutation.v3.header_mutation_pb2",
    "extensions.filters.http.jwt_authn.v3.config_pb2",
    "extensions.filters.http.local_ratelimit.v3.local_rate_limit_pb2",
    "extensions.filters.http.lua.v3.lua_pb2",
    "extensions.filters.http.rbac.v3.rbac_pb2",
    "extensions.filters.http.router.v3.router_pb2",
    "extensions.filters.http.stateful_session.v3.stateful_session_pb2",
    "extensions.filters.listener.tls_inspector.v3.tls_inspector_pb2",
    "extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2",
    "extensions.filters.network.tcp_proxy.v3.tcp_proxy_pb2",
    "extensions.http.stateful_session.cookie.v3.cookie_pb2",
    "extensions.load_balancing_policies.least_request.v3.least_request_pb2",
    "extensions.load_balancing_policies.maglev.v3.maglev_pb2",
    "extensions.load_balancing_policies.override_host.v3.override_host_pb2",
    "extensions.load_balancing_policies.round_robin.v3.round_robin_pb2",
    "extensions.retry.host.previous_hosts.v3.previous_hosts_pb2",
    "extensions.transport_sockets.tls.v3.tls_pb2",
    "extensions.upstreams.http.v3.http_protocol_options_pb2",
    "type.matcher.v3.http_inputs_pb2",
):
    importlib.import_module(f"envoy.{_module}")

_CLASSES: dict[str, type[Any]] = {
    "cluster": cluster_pb2.Cluster,
    "assignment": endpoint_pb2.ClusterLoadAssignment,
    "listener": listener_pb2.Listener,
    "chain": listener_components_pb2.FilterChain,
    "secret": secret_pb2.Secret,
    "host": route_components_pb2.VirtualHost,
    "route": route_components_pb2.Route,
}


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource as it is sent; equal content has an equal version, also after a restart."""

    version: str
    body: AnyMessage


def parse(kind: str, value: Json) -> Any:
    """Returns the message of a resource. Raises json_format.ParseError."""
    return json_format.ParseDict(value, _CLASSES[kind]())


def resource(kind: str, value: Json) -> Resource:
    """Returns a resource, ready to be sent. Raises json_format.ParseError."""
    return packed(parse(kind, value))


def with_routes(host: Any, routes: list[Any]) -> Any:
    """Returns a virtual host with these routes, which are messages, in place of its own."""
    return route_components_pb2.VirtualHost(name=host.name, domains=host.domains, routes=routes)


def with_chains(listener: Any, chains: list[Any]) -> Resource:
    """Returns a listener with these filter chains, which are messages, after its own."""
    made = listener_pb2.Listener()
    made.CopyFrom(listener)
    made.filter_chains.extend(chains)
    return packed(made)


def route_configuration(name: str, hosts: list[Any], *, any_port: bool = False) -> Resource:
    """Returns the route configuration of virtual hosts that are messages already; with `any_port` the number after a
    name does not count.
    """
    configuration = route_pb2.RouteConfiguration(name=name, virtual_hosts=hosts, ignore_port_in_host_matching=any_port)
    configuration.validate_clusters.value = False
    return packed(configuration)


def packed(message: Message) -> Resource:
    """Returns a message as a resource."""
    content = message.SerializeToString(deterministic=True)
    body = AnyMessage(type_url=f"type.googleapis.com/{message.DESCRIPTOR.full_name}", value=content)
    return Resource(hashlib.sha256(content).hexdigest()[:16], body)
