"""An endpoint picker of the user's: a server of ext_proc that names the replica of each request in a header.

It works as those of the Gateway API Inference Extension: it gets headers and body of the request, and answers with the
header. Where it is away, or names no replica that takes requests, the one with the fewest requests is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envoy.config.cluster.v3.circuit_breaker_pb2 import CircuitBreakers
from envoy.config.cluster.v3.cluster_pb2 import Cluster, LoadBalancingPolicy
from envoy.config.cluster.v3.outlier_detection_pb2 import OutlierDetection
from envoy.config.common.mutation_rules.v3.mutation_rules_pb2 import HeaderMutation as Mutation
from envoy.config.core.v3.grpc_service_pb2 import GrpcService
from envoy.config.core.v3.health_check_pb2 import HealthCheck
from envoy.config.core.v3.protocol_pb2 import Http2ProtocolOptions, HttpProtocolOptions, KeepaliveSettings
from envoy.config.endpoint.v3.endpoint_components_pb2 import Endpoint, LbEndpoint, LocalityLbEndpoints
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.extensions.filters.http.ext_proc.v3.ext_proc_pb2 import ExternalProcessor, ExtProcOverrides, ExtProcPerRoute
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.extensions.filters.http.header_mutation.v3.header_mutation_pb2 import (
    HeaderMutation,
    HeaderMutationPerRoute,
    Mutations,
)
from envoy.extensions.load_balancing_policies.override_host.v3.override_host_pb2 import OverrideHost
from envoy.extensions.transport_sockets.tls.v3.common_pb2 import CertificateValidationContext, SubjectAltNameMatcher
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import CommonTlsContext, UpstreamTlsContext
from envoy.type.matcher.v3.string_pb2 import StringMatcher
from envoy.type.v3.http_status_pb2 import HttpStatus, StatusCode
from envoy.type.v3.percent_pb2 import Percent

from retinue.proxy.core import http
from retinue.proxy.core.fields import TRUE, duration, number, pack, socket_address, text, tls
from retinue.router.core import names
from retinue.rpc.core.addresses import is_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envoy.config.core.v3.base_pb2 import TransportSocket
    from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
    from google.protobuf.any_pb2 import Any as AnyMessage

    from retinue.router.core.table import Picker

_HEADER = "x-gateway-destination-endpoint"
_CONNECT_SECONDS = 1
# Pickers may let a request wait for its turn; one that has stopped answering costs each request so much at the most.
_ANSWER_SECONDS = 60
_KEEPALIVE = KeepaliveSettings(interval=duration(5), timeout=duration(2))
# How soon one that went away is not asked, and one that came is.
_POLL_SECONDS, _EJECTION_SECONDS = 1, 2
_MAX_REQUESTS = 1_000_000


def picker_cluster_name(endpoint_id: str) -> str:
    """Returns the name of the cluster of an endpoint's picker."""
    return f"{endpoint_id}/picker"


def picker_cluster(endpoint_id: str, picker: Picker, addresses: Iterable[str]) -> Cluster:
    """Returns the cluster of a picker at these addresses: the engine looks no name up that a user has chosen."""
    name = picker_cluster_name(endpoint_id)
    places = [LbEndpoint(endpoint=Endpoint(address=socket_address(address, picker.port))) for address in addresses]
    most = number(_MAX_REQUESTS)
    limits = CircuitBreakers.Thresholds(max_connections=most, max_pending_requests=most, max_requests=most)
    return Cluster(
        name=name,
        connect_timeout=duration(_CONNECT_SECONDS),
        # A request whose body has begun to go to a picker cannot do without it:
        # one that is away must not be asked at all.
        common_lb_config=Cluster.CommonLbConfig(healthy_panic_threshold=Percent(value=0)),
        health_checks=[
            HealthCheck(
                tcp_health_check=HealthCheck.TcpHealthCheck(),
                timeout=duration(_CONNECT_SECONDS),
                interval=duration(_POLL_SECONDS),
                no_traffic_interval=duration(_POLL_SECONDS),
                unhealthy_threshold=number(1),
                healthy_threshold=number(1),
            )
        ],
        outlier_detection=OutlierDetection(
            split_external_local_origin_errors=True,
            consecutive_local_origin_failure=number(1),
            enforcing_consecutive_local_origin_failure=number(100),
            enforcing_local_origin_success_rate=number(0),
            enforcing_consecutive_5xx=number(0),
            enforcing_success_rate=number(0),
            interval=duration(_POLL_SECONDS),
            base_ejection_time=duration(_EJECTION_SECONDS),
            max_ejection_percent=number(100),
        ),
        circuit_breakers=CircuitBreakers(thresholds=[limits]),
        typed_extension_protocol_options=http.http2_cluster(
            Http2ProtocolOptions(connection_keepalive=_KEEPALIVE),
            # Not that of the filter, which has no say while a body is on its way.
            HttpProtocolOptions(max_stream_duration=duration(_ANSWER_SECONDS)),
        ),
        type=Cluster.STATIC,
        load_assignment=ClusterLoadAssignment(cluster_name=name, endpoints=[LocalityLbEndpoints(lb_endpoints=places)]),
        transport_socket=_tls(picker) if picker.ca else None,
    )


def picker_filters() -> list[HttpFilter]:
    """Returns the filters that take the header from clients and ask a picker; on routes with a picker only."""
    ask = ExternalProcessor(
        # Routes name their own.
        grpc_service=_service(names.GATE_CLUSTER),
        processing_mode=_MODE,
        failure_mode_allow=True,
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        # The route was chosen by who may enter; a picker chooses a replica only.
        disable_clear_route_cache=True,
        disable_immediate_response=True,
    )
    return [names.optional_filter("header_mutation", HeaderMutation()), names.optional_filter("ext_proc", ask)]


def picker_route(endpoint_id: str) -> dict[str, AnyMessage]:
    """Returns the settings of these filters for the routes of an endpoint."""
    overrides = ExtProcOverrides(
        grpc_service=_service(picker_cluster_name(endpoint_id)), processing_mode=_MODE, failure_mode_allow=TRUE
    )
    mutations = Mutations(request_mutations=[Mutation(remove=_HEADER)])
    return {
        f"{names.FILTERS}.header_mutation": pack(HeaderMutationPerRoute(mutations=mutations)),
        f"{names.FILTERS}.ext_proc": pack(ExtProcPerRoute(overrides=overrides)),
    }


def picked(fallback: LoadBalancingPolicy) -> OverrideHost:
    """Returns the policy that takes the replica of the header, and `fallback` where that is none of the cluster's."""
    return OverrideHost(
        override_host_sources=[OverrideHost.OverrideHostSource(header=_HEADER)], fallback_policy=fallback
    )


_MODE = ProcessingMode(
    request_header_mode=ProcessingMode.SEND,
    request_body_mode=ProcessingMode.FULL_DUPLEX_STREAMED,
    request_trailer_mode=ProcessingMode.SEND,
    response_header_mode=ProcessingMode.SKIP,
)


def _service(cluster: str) -> GrpcService:
    return GrpcService(envoy_grpc=GrpcService.EnvoyGrpc(cluster_name=cluster))


def _tls(picker: Picker) -> TransportSocket:
    by_address = is_address(picker.host)
    kind = SubjectAltNameMatcher.IP_ADDRESS if by_address else SubjectAltNameMatcher.DNS
    validation = CertificateValidationContext(
        trusted_ca=text(picker.ca),
        match_typed_subject_alt_names=[SubjectAltNameMatcher(san_type=kind, matcher=StringMatcher(exact=picker.host))],
    )
    common = CommonTlsContext(alpn_protocols=["h2"], validation_context=validation)
    return tls(UpstreamTlsContext(common_tls_context=common, sni="" if by_address else picker.host))
