"""The listener for clients, which stays the same while a router runs, its own answers,
and the certificate that it shows.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from envoy.config.accesslog.v3.accesslog_pb2 import (
    AccessLog,
    AccessLogFilter,
    ComparisonFilter,
    OrFilter,
    ResponseFlagFilter,
    StatusCodeFilter,
)
from envoy.config.core.v3.base_pb2 import HeaderValueOption, RuntimeUInt32
from envoy.config.core.v3.config_source_pb2 import ApiVersion
from envoy.config.core.v3.grpc_service_pb2 import GrpcService
from envoy.config.core.v3.substitution_format_string_pb2 import SubstitutionFormatString
from envoy.config.listener.v3.listener_components_pb2 import FilterChain
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.access_loggers.file.v3.file_pb2 import FileAccessLog
from envoy.extensions.filters.http.cors.v3.cors_pb2 import Cors
from envoy.extensions.filters.http.ext_authz.v3.ext_authz_pb2 import ExtAuthz
from envoy.extensions.filters.http.local_ratelimit.v3.local_rate_limit_pb2 import LocalRateLimit
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from envoy.extensions.filters.http.stateful_session.v3.stateful_session_pb2 import StatefulSession
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
    HttpFilter,
    LocalReplyConfig,
    Rds,
    ResponseMapper,
)
from envoy.type.v3.http_status_pb2 import HttpStatus, StatusCode

from retinue.proxy.core import http
from retinue.proxy.core.fields import (
    ADS,
    certificate_secret,
    duration,
    network_filter,
    number,
    pack,
    server_tls,
    socket_address,
    struct,
)
from retinue.router.core import names
from retinue.router.core.credentials import token_filters
from retinue.router.core.picker import picker_filters

if TYPE_CHECKING:
    from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret

_HEADERS_SECONDS, _CONNECTION_IDLE_SECONDS = 15, 3600
# The engine's own limit to a request that is held; the gate's are shorter.
_GATE_SECONDS = 86_400
_BUFFER = 1 << 20
_ERRORS = 400
# Flags by which the engine says why it answered by itself.
_REFUSED_BY_GATE, _NO_ROUTE, _OVERFLOW = ("UAEX",), ("NR",), ("UO",)
_NO_REPLICA, _BROKE, _SILENT = ("UH", "NC"), ("UC", "UF", "UR", "LR", "UPE"), ("UT", "SI", "DT", "UMSDR")


class Logged(StrEnum):
    """Which requests are in the access log."""

    ALL = "all"
    ERRORS = "errors"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Listening:
    """Where clients connect, whether by TLS, and the file of the access log with what is in it."""

    address: str
    port: int
    tls: bool
    access_log: str
    logged: Logged = Logged.ALL


def listener(listening: Listening, token_key: bytes) -> Listener:
    """Returns the listener: TLS by SDS, and HTTP of any version with all filters."""
    chain = FilterChain(
        filters=[network_filter("http", _http(listening, token_key))],
        transport_socket=server_tls(names.CERTIFICATE) if listening.tls else None,
    )
    return Listener(
        name=names.LISTENER,
        address=socket_address(listening.address, listening.port),
        per_connection_buffer_limit_bytes=number(_BUFFER),
        socket_options=http.patience(),
        filter_chains=[chain],
    )


def secret(certificate: str, private_key: str) -> Secret:
    """Returns the certificate for clients."""
    return certificate_secret(names.CERTIFICATE, certificate, private_key)


def key_set(token_key: bytes) -> str:
    """Returns the public key of tokens as a JSON Web Key Set."""
    x = base64.urlsafe_b64encode(token_key).rstrip(b"=").decode()
    return json.dumps({"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "x": x}]})


def _http(listening: Listening, token_key: bytes) -> HttpConnectionManager:
    own = HttpConnectionManager(
        stat_prefix="clients",
        rds=Rds(route_config_name=names.ROUTES, config_source=ADS),
        http_filters=_filters(token_key),
        always_set_request_id_in_response=True,
        local_reply_config=_local_replies(),
        access_log=_access_logs(listening),
    )
    return http.clients(own, headers_seconds=_HEADERS_SECONDS, idle_seconds=_CONNECTION_IDLE_SECONDS)


def _filters(token_key: bytes) -> list[HttpFilter]:
    """Returns the filters, in the order in which a request meets them: only what its route asks for does something."""
    gate = ExtAuthz(
        grpc_service=GrpcService(
            envoy_grpc=GrpcService.EnvoyGrpc(cluster_name=names.GATE_CLUSTER), timeout=duration(_GATE_SECONDS)
        ),
        transport_api_version=ApiVersion.V3,
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
    )
    return [
        names.optional_filter("cors", Cors()),
        *token_filters(key_set(token_key)),
        names.optional_filter("rbac", RBAC()),
        names.optional_filter("local_ratelimit", LocalRateLimit(stat_prefix="rate")),
        names.optional_filter("ext_authz", gate),
        *picker_filters(),
        names.optional_filter("stateful_session", StatefulSession()),
        HttpFilter(name=f"{names.FILTERS}.router", typed_config=pack(Router(suppress_envoy_headers=True))),
    ]


def _access_logs(listening: Listening) -> list[AccessLog]:
    """Returns the access log, if there is to be one: a line of JSON per request, without its query and its token."""
    if listening.logged is Logged.NONE:
        return []
    token = f"%DYNAMIC_METADATA({names.JWT_FILTER}:{names.JWT_PAYLOAD}:jti)%"
    # Each field is paid for by every request; names are those of the route, revisions those of the cluster.
    fields = {
        "time": "%START_TIME%",
        "endpoint": "%ROUTE_NAME%",
        "cluster": "%UPSTREAM_CLUSTER%",
        "replica": "%UPSTREAM_HOST%",
        "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        "token": token,
        "method": "%REQ(:METHOD)%",
        "path": "%PATH(NQ)%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "sent_bytes": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
        "request_id": "%REQ(X-REQUEST-ID)%",
    }
    log = FileAccessLog(path=listening.access_log, log_format=SubstitutionFormatString(json_format=struct(fields)))
    errors = [
        _status(_ERRORS, "retinue.logged", ComparisonFilter.GE),
        # Whatever went wrong after the status was sent.
        AccessLogFilter(response_flag_filter=ResponseFlagFilter()),
    ]
    only = AccessLogFilter(or_filter=OrFilter(filters=errors)) if listening.logged is Logged.ERRORS else None
    return [AccessLog(name="file", typed_config=pack(log), filter=only)]


def _local_replies() -> LocalReplyConfig:
    """Returns the answers that do not come from a replica: a status, what is the matter, and when to try again;
    the first that fits.
    """
    return LocalReplyConfig(
        mappers=[
            # The gate sends its own Retry-After; without the gate the engine answers, and it is back in a moment.
            _reply(_flags(_REFUSED_BY_GATE), "STARTING", "no replica is ready yet", status=503, retry_after=2),
            _reply(_flags(_NO_ROUTE), "NO_ENDPOINT", "no endpoint has this host name", status=404),
            _reply(_flags(_OVERFLOW), "OVERLOADED", "too many requests wait for a replica", status=503, retry_after=1),
            _reply(_flags(_NO_REPLICA), "STARTING", "no replica takes requests now", status=503, retry_after=10),
            _reply(_flags(_SILENT), "TIMEOUT", "the replica did not answer in time", status=504),
            _reply(_flags(_BROKE), "REPLICA_BROKE", "the replica broke off before it answered", status=502),
            _reply(_answered(401), "NO_TOKEN", "a token of this endpoint is needed"),
            _reply(_answered(403), "FORBIDDEN", "this token or address may not enter here"),
            _reply(_answered(410), "NO_ENDPOINT", "the endpoint was deleted"),
            # Last: all others of this status have a flag.
            _reply(_answered(503), "PICKER_FAILED", "the endpoint's picker broke off", retry_after=1),
            _reply(_answered(429), "RATE_LIMIT", "too many requests by this caller", retry_after=1),
        ]
    )


def _flags(flags: tuple[str, ...]) -> AccessLogFilter:
    return AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=flags))


def _answered(status: int) -> AccessLogFilter:
    return _status(status, f"retinue.status.{status}", ComparisonFilter.EQ)


def _status(status: int, key: str, operator: ComparisonFilter.Op.ValueType) -> AccessLogFilter:
    comparison = ComparisonFilter(op=operator, value=RuntimeUInt32(default_value=status, runtime_key=key))
    return AccessLogFilter(status_code_filter=StatusCodeFilter(comparison=comparison))


def _reply(when: AccessLogFilter, code: str, message: str, *, status: int = 0, retry_after: int = 0) -> ResponseMapper:
    error = {
        "code": code,
        "message": message,
        "endpoint": f"%METADATA(ROUTE:{names.METADATA}:endpoint)%",
        "request_id": "%REQ(X-REQUEST-ID)%",
    }
    later = http.header("retry-after", str(retry_after), HeaderValueOption.ADD_IF_ABSENT)
    return ResponseMapper(
        filter=when,
        body_format_override=SubstitutionFormatString(json_format=struct({"error": error})),
        status_code=number(status) if status else None,
        headers_to_add=[later] if retry_after else [],
    )
