"""A virtual host per endpoint: who may enter, where requests go, and whether they are held."""

from __future__ import annotations

from retinue.proxy.core import http
from retinue.proxy.core.fields import Json, cidr, duration, typed
from retinue.router.core import names
from retinue.router.core.credentials import PLACES, Place
from retinue.router.core.picker import picker_route
from retinue.router.core.table import Access, Algorithm, Cors, Endpoint, Routing

_FILTERS = "envoy.filters.http"
_HTTP = "extensions.filters.http"
_GONE = 410
# Only what was not sent, so that nothing is done twice.
_RETRY_UNSENT = "connect-failure,refused-stream,reset-before-request"
_RETRIES, _HOST_ATTEMPTS = 3, 5
_RETRY_MIN, _RETRY_MAX = 0.025, 0.25
_IDEMPOTENT = "GET|HEAD|PUT|DELETE"
_UNLIMITED, _MAX_CALLERS = 1_000_000_000, 10_000


def virtual_host(endpoint: Endpoint, *, gated: bool) -> Json:
    """Returns the virtual host of an endpoint. While `gated`, its requests are held until the gate lets them go."""
    host: Json = {
        "name": endpoint.id,
        "domains": sorted(set(endpoint.hosts)) or [f"{endpoint.id}.invalid"],
        **http.forwarded({"x-forwarded-host": "%REQ(:AUTHORITY)%"}),
        # What the engine says of the client beside x-forwarded-for.
        "request_headers_to_remove": ["x-envoy-external-address"],
    }
    if endpoint.deleted:
        host["routes"] = [_route(endpoint, {"direct_response": {"status": _GONE}}, {})]
        return host
    filters = _filters(endpoint, gated=gated)
    host["routes"] = [
        _route(endpoint, {"route": _action(endpoint, repeat=repeat, gated=gated)}, filters, match, place)
        for place in ([None] if endpoint.access.public else PLACES)
        for match, repeat in _matches(endpoint.routing)
    ]
    return host


def _matches(routing: Routing) -> list[tuple[Json, bool]]:
    """Returns what requests match, with whether these may be sent again after an answer."""
    if not routing.retry_idempotent:
        return [({}, False)]
    method = {"name": ":method", "string_match": {"safe_regex": {"regex": _IDEMPOTENT}}}
    return [
        ({"headers": [method]}, True),
        ({"headers": [{"name": "idempotency-key", "present_match": True}]}, True),
        ({}, False),
    ]


def _route(
    endpoint: Endpoint, action: Json, filters: Json, match: Json | None = None, place: Place | None = None
) -> Json:
    about = {"endpoint": endpoint.name, "project": endpoint.project}
    asked = place.match if place is not None else {}
    headers = [*asked.get("headers", ()), *(match or {}).get("headers", ())]
    route: Json = {
        # For the access log: less work for each request than metadata.
        "name": f"{endpoint.project}/{endpoint.name}",
        "match": {"prefix": "/", **asked, "headers": headers},
        "metadata": {"filter_metadata": {names.METADATA: about}},
        **action,
    }
    if place is not None:
        filters = {**filters, **place.filters()}
        route["request_headers_to_remove"] = list(place.removed)
    if filters:
        route["typed_per_filter_config"] = filters
    return route


def _action(endpoint: Endpoint, *, repeat: bool, gated: bool) -> Json:
    routing = endpoint.routing
    silence = routing.idle_timeout + (routing.hold_timeout if gated else 0) if routing.idle_timeout else 0
    retry: Json = {
        "retry_on": _RETRY_UNSENT + (",gateway-error,reset" if repeat else ""),
        "num_retries": _RETRIES,
        "retry_host_predicate": [
            {
                "name": "previous hosts",
                "typed_config": typed("extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"),
            }
        ],
        "host_selection_retry_max_attempts": _HOST_ATTEMPTS,
        "retry_back_off": {"base_interval": duration(_RETRY_MIN), "max_interval": duration(_RETRY_MAX)},
    }
    if routing.idle_timeout:
        retry["per_try_idle_timeout"] = duration(routing.idle_timeout)
    action: Json = {
        **_destination(endpoint),
        "timeout": duration(routing.request_timeout),
        "idle_timeout": duration(silence),
        "retry_policy": retry,
    }
    if routing.algorithm is Algorithm.HASH:
        action["hash_policy"] = [_hash(routing)]
    return action


def _destination(endpoint: Endpoint) -> Json:
    """Returns the cluster of the only revision, which costs less per request than a choice,
    or the clusters to choose from.
    """
    chosen = [(names.cluster_name(endpoint.id, revision.number), revision.percent) for revision in endpoint.chosen]
    if len(chosen) == 1:
        return {"cluster": chosen[0][0]}
    return {"weighted_clusters": {"clusters": [{"name": name, "weight": percent} for name, percent in chosen]}}


def _hash(routing: Routing) -> Json:
    if routing.hash_header:
        return {"header": {"header_name": routing.hash_header}}
    if routing.hash_cookie:
        return {"cookie": {"name": routing.hash_cookie}}
    return {"connection_properties": {"source_ip": True}}


def _filters(endpoint: Endpoint, *, gated: bool) -> Json:
    access, routing = endpoint.access, endpoint.routing
    filters: Json = {}
    if not access.public or access.source_ranges:
        filters[f"{_FILTERS}.rbac"] = _permissions(endpoint)
    if access.rate_requests:
        filters[f"{_FILTERS}.local_ratelimit"] = _rate(access)
    if gated:
        settings = {"context_extensions": {"endpoint": endpoint.id}, "disable_request_body_buffering": True}
        filters[f"{_FILTERS}.ext_authz"] = typed(f"{_HTTP}.ext_authz.v3.ExtAuthzPerRoute", check_settings=settings)
    if routing.cors is not None:
        filters[f"{_FILTERS}.cors"] = _cors(routing.cors)
    if routing.picker is not None:
        filters |= picker_route(endpoint.id)
    if routing.affinity_cookie:
        filters[f"{_FILTERS}.stateful_session"] = _affinity(routing)
    return filters


def _permissions(endpoint: Endpoint) -> Json:
    """Returns who may enter: tokens of this endpoint that are not revoked, from networks that are allowed."""
    needed: list[Json] = []
    if endpoint.access.source_ranges:
        sources = [{"remote_ip": cidr(network)} for network in endpoint.access.source_ranges]
        needed.append({"or_ids": {"ids": sources}})
    if not endpoint.access.public:
        needed.append(_claim("aud", endpoint.id))
        if endpoint.access.revoked:
            revoked = [_claim("jti", token) for token in endpoint.access.revoked]
            needed.append({"not_id": {"or_ids": {"ids": revoked}}})
    policy = {"permissions": [{"any": True}], "principals": [{"and_ids": {"ids": needed}}]}
    rules = {"action": "ALLOW", "policies": {"access": policy}}
    return typed(f"{_HTTP}.rbac.v3.RBACPerRoute", rbac={"rules": rules})


def _claim(name: str, value: str) -> Json:
    matcher = {
        "filter": names.JWT_FILTER,
        "path": [{"key": names.JWT_PAYLOAD}, {"key": name}],
        "value": {"string_match": {"exact": value}},
    }
    return {"sourced_metadata": {"metadata_matcher": matcher, "metadata_source": "DYNAMIC"}}


def _rate(access: Access) -> Json:
    """Returns the limit of each caller: a bucket per token, or per address of a public endpoint."""
    action: Json
    if access.public:
        key, action = "remote_address", {"remote_address": {}}
    else:
        path = [{"key": names.JWT_PAYLOAD}, {"key": "jti"}]
        key = "token"
        action = {
            "metadata": {"descriptor_key": key, "metadata_key": {"key": names.JWT_FILTER, "path": path}},
        }
    bucket = {
        "max_tokens": access.rate_requests,
        "tokens_per_fill": access.rate_requests,
        "fill_interval": duration(access.rate_period),
    }
    every = {"default_value": {"numerator": 100}}
    return typed(
        f"{_HTTP}.local_ratelimit.v3.LocalRateLimit",
        stat_prefix="rate",
        token_bucket={"max_tokens": _UNLIMITED, "tokens_per_fill": _UNLIMITED, "fill_interval": "1s"},
        filter_enabled=every,
        filter_enforced=every,
        rate_limits=[{"actions": [action]}],
        descriptors=[{"entries": [{"key": key}], "token_bucket": bucket}],
        max_dynamic_descriptors=_MAX_CALLERS,
        always_consume_default_token_bucket=False,
    )


def _cors(cors: Cors) -> Json:
    origins = [{"safe_regex": {"regex": ".*"}} if origin == "*" else {"exact": origin} for origin in cors.origins]
    return typed(
        f"{_HTTP}.cors.v3.CorsPolicy",
        allow_origin_string_match=origins,
        allow_methods=", ".join(cors.methods),
        allow_headers=", ".join(cors.headers),
        allow_credentials=cors.credentials,
        max_age=str(round(cors.max_age)),
    )


def _affinity(routing: Routing) -> Json:
    cookie = {"name": routing.affinity_cookie, "path": "/", "ttl": duration(routing.affinity_lifetime)}
    state = typed("extensions.http.stateful_session.cookie.v3.CookieBasedSessionState", cookie=cookie)
    session = {"session_state": {"name": "envoy.http.stateful_session.cookie", "typed_config": state}}
    return typed(f"{_HTTP}.stateful_session.v3.StatefulSessionPerRoute", stateful_session=session)
