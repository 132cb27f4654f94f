"""Builds parts of Envoy's configuration that every proxy has, in the JSON form of their messages."""

from __future__ import annotations

from typing import Any

# A resource in the JSON form of its message.
Json = dict[str, Any]

ADS_CLUSTER = "ads"
ADS: Json = {"ads": {}, "resource_api_version": "V3"}
TYPES = "type.googleapis.com/envoy."


def typed(kind: str, **fields: Any) -> Json:
    """Returns a message inside an Any, by its name below `envoy.`."""
    return {"@type": f"{TYPES}{kind}", **fields}


def duration(seconds: float) -> str:
    """Returns a length of time as JSON has it."""
    return f"{seconds:.3f}s"


def cidr(network: str) -> Json:
    """Returns a network in CIDR notation as a message."""
    address, _, length = network.partition("/")
    longest = 128 if ":" in address else 32
    return {"address_prefix": address, "prefix_len": int(length) if length else longest}


def dynamic_resources(grpc_service: Json) -> Json:
    """Returns where clusters and listeners come from: delta ADS of a service."""
    ads = {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [grpc_service]}
    return {"ads_config": ads, "cds_config": ADS, "lds_config": ADS}


def client_limit(connections: int) -> Json:
    """Returns the overload manager that closes connections of clients beyond so many, when they come."""
    kind = "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    limit = typed(kind, max_active_downstream_connections=connections)
    name = "envoy.resource_monitors.global_downstream_max_connections"
    return {"resource_monitors": [{"name": name, "typed_config": limit}]}


def server_tls(certificate: str) -> Json:
    """Returns the transport socket of a listener for HTTP/2 and HTTP/1.1,
    whose certificate is the secret of this name.
    """
    context = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_certificate_sds_secret_configs": [{"name": certificate, "sds_config": ADS}],
    }
    kind = "extensions.transport_sockets.tls.v3.DownstreamTlsContext"
    return {"name": "tls", "typed_config": typed(kind, common_tls_context=context)}


def certificate_secret(name: str, chain: str, key: str) -> Json:
    """Returns a certificate as a secret: chain and key in PEM."""
    return {
        "name": name,
        "tls_certificate": {"certificate_chain": {"inline_string": chain}, "private_key": {"inline_string": key}},
    }
