"""An endpoint picker of the user's: a server of ext_proc that names the replica of each request in a header.

It works as those of the Gateway API Inference Extension: it gets headers and body of the request, and answers with the
header. Where it is away, or names no replica that takes requests, the one with the fewest requests is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable

from retinue.proxy.core.fields import Json, duration, typed
from retinue.router.core import names
from retinue.router.core.table import Picker
from retinue.rpc.core.addresses import is_address

_HTTP = "extensions.filters.http"
_HEADER = "x-gateway-destination-endpoint"
_CONNECT_SECONDS = 1
# Pickers may let a request wait for its turn; one that has stopped answering costs each request so much at the most.
_ANSWER_SECONDS = 60
_KEEPALIVE = {"interval": "5s", "timeout": "2s"}
# How soon one that went away is not asked, and one that came is.
_POLL_SECONDS, _EJECTION_SECONDS = 1, 2
_MAX_REQUESTS = 1_000_000


def picker_cluster_name(endpoint_id: str) -> str:
    """Returns the name of the cluster of an endpoint's picker."""
    return f"{endpoint_id}/picker"


def picker_cluster(endpoint_id: str, picker: Picker, addresses: Iterable[str]) -> Json:
    """Returns the cluster of a picker at these addresses: the engine looks no name up that a user has chosen."""
    name = picker_cluster_name(endpoint_id)
    places = [{"socket_address": {"address": address, "port_value": picker.port}} for address in addresses]
    limits = {"max_connections": _MAX_REQUESTS, "max_pending_requests": _MAX_REQUESTS, "max_requests": _MAX_REQUESTS}
    cluster: Json = {
        "name": name,
        "connect_timeout": duration(_CONNECT_SECONDS),
        # A request whose body has begun to go to a picker cannot do without it:
        # one that is away must not be asked at all.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [
            {
                "tcp_health_check": {},
                "timeout": duration(_CONNECT_SECONDS),
                "interval": duration(_POLL_SECONDS),
                "no_traffic_interval": duration(_POLL_SECONDS),
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
            }
        ],
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_local_origin_success_rate": 0,
            "enforcing_consecutive_5xx": 0,
            "enforcing_success_rate": 0,
            "interval": duration(_POLL_SECONDS),
            "base_ejection_time": duration(_EJECTION_SECONDS),
            "max_ejection_percent": 100,
        },
        "circuit_breakers": {"thresholds": [limits]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                "extensions.upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={"http2_protocol_options": {"connection_keepalive": _KEEPALIVE}},
                # Not that of the filter, which has no say while a body is on its way.
                common_http_protocol_options={"max_stream_duration": duration(_ANSWER_SECONDS)},
            )
        },
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": place}} for place in places]}],
        },
    }
    if picker.ca:
        cluster["transport_socket"] = {"name": "tls", "typed_config": _tls(picker)}
    return cluster


def picker_filters() -> list[Json]:
    """Returns the filters that take the header from clients and ask a picker; on routes with a picker only."""
    ask = typed(
        f"{_HTTP}.ext_proc.v3.ExternalProcessor",
        # Routes name their own.
        grpc_service={"envoy_grpc": {"cluster_name": names.GATE_CLUSTER}},
        processing_mode=_MODE,
        failure_mode_allow=True,
        status_on_error={"code": "ServiceUnavailable"},
        # The route was chosen by who may enter; a picker chooses a replica only.
        disable_clear_route_cache=True,
        disable_immediate_response=True,
    )
    return [
        names.optional_filter("header_mutation", typed(f"{_HTTP}.header_mutation.v3.HeaderMutation")),
        names.optional_filter("ext_proc", ask),
    ]


def picker_route(endpoint_id: str) -> Json:
    """Returns the settings of these filters for the routes of an endpoint."""
    service = {"envoy_grpc": {"cluster_name": picker_cluster_name(endpoint_id)}}
    overrides = {"grpc_service": service, "processing_mode": _MODE, "failure_mode_allow": True}
    mutations = {"request_mutations": [{"remove": _HEADER}]}
    return {
        "envoy.filters.http.header_mutation": typed(
            f"{_HTTP}.header_mutation.v3.HeaderMutationPerRoute", mutations=mutations
        ),
        "envoy.filters.http.ext_proc": typed(f"{_HTTP}.ext_proc.v3.ExtProcPerRoute", overrides=overrides),
    }


def picked(fallback: Json) -> Json:
    """Returns the policy that takes the replica of the header, and `fallback` where that is none of the cluster's."""
    return typed(
        "extensions.load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"header": _HEADER}],
        fallback_policy=fallback,
    )


_MODE: Json = {
    "request_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_header_mode": "SKIP",
}


def _tls(picker: Picker) -> Json:
    kind = "IP_ADDRESS" if is_address(picker.host) else "DNS"
    validation = {
        "trusted_ca": {"inline_string": picker.ca},
        "match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": picker.host}}],
    }
    return typed(
        "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context={"alpn_protocols": ["h2"], "validation_context": validation},
        **({"sni": picker.host} if kind == "DNS" else {}),
    )
