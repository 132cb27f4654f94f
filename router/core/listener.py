"""The listener for clients, which stays the same while a router runs, its own answers,
and the certificate that it shows.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from enum import StrEnum

from retinue.proxy.core import http
from retinue.proxy.core.fields import ADS, Json, certificate_secret, duration, server_tls, typed
from retinue.router.core import names
from retinue.router.core.credentials import token_filters
from retinue.router.core.picker import picker_filters

# Beside the router filter, in the order in which a request meets them. Only what a route asks for does something.
_HTTP = "extensions.filters.http"
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


def listener(listening: Listening, token_key: bytes) -> Json:
    """Returns the listener: TLS by SDS, and HTTP of any version with all filters."""
    chain: Json = {
        "filters": [
            {
                "name": "http",
                "typed_config": _http(listening, token_key),
            }
        ]
    }
    if listening.tls:
        chain["transport_socket"] = server_tls(names.CERTIFICATE)
    return {
        "name": names.LISTENER,
        "address": {"socket_address": {"address": listening.address, "port_value": listening.port}},
        "per_connection_buffer_limit_bytes": _BUFFER,
        **http.patience(),
        "filter_chains": [chain],
    }


def secret(certificate: str, private_key: str) -> Json:
    """Returns the certificate for clients."""
    return certificate_secret(names.CERTIFICATE, certificate, private_key)


def key_set(token_key: bytes) -> str:
    """Returns the public key of tokens as a JSON Web Key Set."""
    x = base64.urlsafe_b64encode(token_key).rstrip(b"=").decode()
    return json.dumps({"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "x": x}]})


def _http(listening: Listening, token_key: bytes) -> Json:
    return http.clients(
        headers_seconds=_HEADERS_SECONDS,
        idle_seconds=_CONNECTION_IDLE_SECONDS,
        stat_prefix="clients",
        rds={"route_config_name": names.ROUTES, "config_source": ADS},
        http_filters=_filters(token_key),
        always_set_request_id_in_response=True,
        local_reply_config=_local_replies(),
        access_log=_access_logs(listening),
    )


def _filters(token_key: bytes) -> list[Json]:
    gate = {
        "envoy_grpc": {"cluster_name": names.GATE_CLUSTER},
        "timeout": duration(_GATE_SECONDS),
    }
    return [
        _filter("cors", f"{_HTTP}.cors.v3.Cors"),
        *token_filters(key_set(token_key)),
        _filter("rbac", f"{_HTTP}.rbac.v3.RBAC"),
        _filter("local_ratelimit", f"{_HTTP}.local_ratelimit.v3.LocalRateLimit", stat_prefix="rate"),
        _filter(
            "ext_authz",
            f"{_HTTP}.ext_authz.v3.ExtAuthz",
            grpc_service=gate,
            transport_api_version="V3",
            status_on_error={"code": 503},
        ),
        *picker_filters(),
        _filter("stateful_session", f"{_HTTP}.stateful_session.v3.StatefulSession"),
        {**_filter("router", f"{_HTTP}.router.v3.Router", suppress_envoy_headers=True), "disabled": False},
    ]


def _filter(name: str, kind: str, **fields: object) -> Json:
    """Returns a filter that requests pass by, unless their route has a configuration for it."""
    return names.optional_filter(name, typed(kind, **fields))


def _access_logs(listening: Listening) -> list[Json]:
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
    kind = "extensions.access_loggers.file.v3.FileAccessLog"
    log: Json = {
        "name": "file",
        "typed_config": typed(kind, path=listening.access_log, log_format={"json_format": fields}),
    }
    if listening.logged is Logged.ERRORS:
        value = {"default_value": _ERRORS, "runtime_key": "retinue.logged"}
        log["filter"] = {
            "or_filter": {
                "filters": [
                    {"status_code_filter": {"comparison": {"op": "GE", "value": value}}},
                    # Whatever went wrong after the status was sent.
                    {"response_flag_filter": {}},
                ]
            }
        }
    return [log]


def _local_replies() -> Json:
    """Returns the answers that do not come from a replica: a status, what is the matter, and when to try again;
    the first that fits.
    """
    return {
        "mappers": [
            # The gate sends its own Retry-After; without the gate the engine answers, and it is back in a moment.
            _reply(_flags(_REFUSED_BY_GATE), "STARTING", "no replica is ready yet", status=503, retry_after=2),
            _reply(_flags(_NO_ROUTE), "NO_ENDPOINT", "no endpoint has this host name", status=404),
            _reply(_flags(_OVERFLOW), "OVERLOADED", "too many requests wait for a replica", status=503, retry_after=1),
            _reply(_flags(_NO_REPLICA), "STARTING", "no replica takes requests now", status=503, retry_after=10),
            _reply(_flags(_SILENT), "TIMEOUT", "the replica did not answer in time", status=504),
            _reply(_flags(_BROKE), "REPLICA_BROKE", "the replica broke off before it answered", status=502),
            _reply(_status(401), "NO_TOKEN", "a token of this endpoint is needed"),
            _reply(_status(403), "FORBIDDEN", "this token or address may not enter here"),
            _reply(_status(410), "NO_ENDPOINT", "the endpoint was deleted"),
            # Last: all others of this status have a flag.
            _reply(_status(503), "PICKER_FAILED", "the endpoint's picker broke off", retry_after=1),
            _reply(_status(429), "RATE_LIMIT", "too many requests by this caller", retry_after=1),
        ]
    }


def _flags(flags: tuple[str, ...]) -> Json:
    return {"response_flag_filter": {"flags": list(flags)}}


def _status(status: int) -> Json:
    value = {"default_value": status, "runtime_key": f"retinue.status.{status}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _reply(when: Json, code: str, message: str, *, status: int = 0, retry_after: int = 0) -> Json:
    error = {
        "code": code,
        "message": message,
        "endpoint": f"%METADATA(ROUTE:{names.METADATA}:endpoint)%",
        "request_id": "%REQ(X-REQUEST-ID)%",
    }
    reply: Json = {"filter": when, "body_format_override": {"json_format": {"error": error}}}
    if status:
        reply["status_code"] = status
    if retry_after:
        header = {"key": "retry-after", "value": str(retry_after)}
        reply["headers_to_add"] = [{"header": header, "append_action": "ADD_IF_ABSENT"}]
    return reply
