"""A virtual host per endpoint: who may enter, where requests go, and whether they are held."""

from __future__ import annotations

from envoy.config.core.v3.base_pb2 import Metadata, RuntimeFractionalPercent
from envoy.config.rbac.v3.rbac_pb2 import RBAC, MetadataSource, Permission, Policy, Principal, SourcedMetadata
from envoy.config.route.v3.route_components_pb2 import (
    DirectResponseAction,
    HeaderMatcher,
    RateLimit,
    RetryPolicy,
    Route,
    RouteAction,
    RouteMatch,
    VirtualHost,
    WeightedCluster,
)
from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import LocalRateLimitDescriptor, RateLimitDescriptor
from envoy.extensions.filters.http.cors.v3.cors_pb2 import CorsPolicy
from envoy.extensions.filters.http.ext_authz.v3.ext_authz_pb2 import CheckSettings, ExtAuthzPerRoute
from envoy.extensions.filters.http.local_ratelimit.v3.local_rate_limit_pb2 import LocalRateLimit
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2
from envoy.extensions.filters.http.stateful_session.v3.stateful_session_pb2 import (
    StatefulSession,
    StatefulSessionPerRoute,
)
from envoy.extensions.http.stateful_session.cookie.v3.cookie_pb2 import CookieBasedSessionState
from envoy.extensions.retry.host.previous_hosts.v3.previous_hosts_pb2 import PreviousHostsPredicate
from envoy.type.http.v3.cookie_pb2 import Cookie
from envoy.type.matcher.v3.metadata_pb2 import MetadataMatcher
from envoy.type.matcher.v3.string_pb2 import StringMatcher
from envoy.type.matcher.v3.value_pb2 import ValueMatcher
from envoy.type.metadata.v3.metadata_pb2 import MetadataKey
from envoy.type.v3.percent_pb2 import FractionalPercent
from envoy.type.v3.token_bucket_pb2 import TokenBucket
from google.protobuf.any_pb2 import Any as AnyMessage

from retinue.proxy.core import http
from retinue.proxy.core.fields import FALSE, TRUE, cidr, duration, extension, number, pack, regex, struct
from retinue.router.core import names
from retinue.router.core.credentials import PLACES, Place
from retinue.router.core.picker import picker_route
from retinue.router.core.table import Access, Algorithm, Cors, Endpoint, Routing

_GONE = 410
# Only what was not sent, so that nothing is done twice.
_RETRY_UNSENT = "connect-failure,refused-stream,reset-before-request"
_RETRIES, _HOST_ATTEMPTS = 3, 5
_RETRY_MIN, _RETRY_MAX = 0.025, 0.25
_IDEMPOTENT = "GET|HEAD|PUT|DELETE"
_UNLIMITED, _MAX_CALLERS = 1_000_000_000, 10_000


# Settings of filters, by their names.
_Filters = dict[str, AnyMessage]


def virtual_host(endpoint: Endpoint, *, gated: bool) -> VirtualHost:
    """Returns the virtual host of an endpoint. While `gated`, its requests are held until the gate lets them go."""
    return VirtualHost(
        name=endpoint.id,
        domains=sorted(set(endpoint.hosts)) or [f"{endpoint.id}.invalid"],
        request_headers_to_add=http.forwarded({"x-forwarded-host": "%REQ(:AUTHORITY)%"}),
        # What the engine says of the client beside x-forwarded-for.
        request_headers_to_remove=["x-envoy-external-address"],
        routes=[_gone(endpoint)] if endpoint.deleted else _routes(endpoint, gated=gated),
    )


def _gone(endpoint: Endpoint) -> Route:
    route = _route(endpoint, {}, [])
    route.direct_response.CopyFrom(DirectResponseAction(status=_GONE))
    return route


def _routes(endpoint: Endpoint, *, gated: bool) -> list[Route]:
    filters = _filters(endpoint, gated=gated)
    actions = [
        (headers, _action(endpoint, repeat=repeat, gated=gated)) for headers, repeat in _matches(endpoint.routing)
    ]
    routes = []
    for place in [None] if endpoint.access.public else PLACES:
        for headers, action in actions:
            route = _route(endpoint, filters, headers, place)
            route.route.CopyFrom(action)
            routes.append(route)
    return routes


def _matches(routing: Routing) -> list[tuple[list[HeaderMatcher], bool]]:
    """Returns the headers that requests match, with whether these may be sent again after an answer."""
    if not routing.retry_idempotent:
        return [([], False)]
    method = HeaderMatcher(name=":method", string_match=StringMatcher(safe_regex=regex(_IDEMPOTENT)))
    return [([method], True), ([HeaderMatcher(name="idempotency-key", present_match=True)], True), ([], False)]


def _route(endpoint: Endpoint, filters: _Filters, headers: list[HeaderMatcher], place: Place | None = None) -> Route:
    match = RouteMatch(prefix="/")
    if place is not None:
        match.MergeFrom(place.match)
        filters = filters | place.filters()
    match.headers.extend(headers)
    about = struct({"endpoint": endpoint.name, "project": endpoint.project})
    return Route(
        # For the access log: less work for each request than metadata.
        name=f"{endpoint.project}/{endpoint.name}",
        match=match,
        metadata=Metadata(filter_metadata={names.METADATA: about}),
        request_headers_to_remove=() if place is None else place.removed,
        typed_per_filter_config=filters,
    )


def _action(endpoint: Endpoint, *, repeat: bool, gated: bool) -> RouteAction:
    routing = endpoint.routing
    silence = routing.idle_timeout + (routing.hold_timeout if gated else 0) if routing.idle_timeout else 0
    retry = RetryPolicy(
        retry_on=_RETRY_UNSENT + (",gateway-error,reset" if repeat else ""),
        num_retries=number(_RETRIES),
        retry_host_predicate=[
            RetryPolicy.RetryHostPredicate(name="previous hosts", typed_config=pack(PreviousHostsPredicate()))
        ],
        host_selection_retry_max_attempts=_HOST_ATTEMPTS,
        retry_back_off=RetryPolicy.RetryBackOff(base_interval=duration(_RETRY_MIN), max_interval=duration(_RETRY_MAX)),
        per_try_idle_timeout=duration(routing.idle_timeout) if routing.idle_timeout else None,
    )
    action = RouteAction(
        timeout=duration(routing.request_timeout),
        idle_timeout=duration(silence),
        retry_policy=retry,
        hash_policy=[_hash(routing)] if routing.algorithm is Algorithm.HASH else [],
    )
    _set_destination(action, endpoint)
    return action


def _set_destination(action: RouteAction, endpoint: Endpoint) -> None:
    """Names the cluster of the only revision, which costs less per request than a choice,
    or the clusters to choose from.
    """
    chosen = [(names.cluster_name(endpoint.id, revision.number), revision.percent) for revision in endpoint.chosen]
    if len(chosen) == 1:
        action.cluster = chosen[0][0]
        return
    weights = [WeightedCluster.ClusterWeight(name=name, weight=number(percent)) for name, percent in chosen]
    action.weighted_clusters.clusters.extend(weights)


def _hash(routing: Routing) -> RouteAction.HashPolicy:
    policy = RouteAction.HashPolicy()
    if routing.hash_header:
        policy.header.header_name = routing.hash_header
    elif routing.hash_cookie:
        policy.cookie.name = routing.hash_cookie
    else:
        policy.connection_properties.source_ip = True
    return policy


def _filters(endpoint: Endpoint, *, gated: bool) -> _Filters:
    access, routing = endpoint.access, endpoint.routing
    filters: _Filters = {}
    if not access.public or access.source_ranges:
        filters[f"{names.FILTERS}.rbac"] = pack(_permissions(endpoint))
    if access.rate_requests:
        filters[f"{names.FILTERS}.local_ratelimit"] = pack(_rate(access))
    if gated:
        settings = CheckSettings(context_extensions={"endpoint": endpoint.id}, disable_request_body_buffering=True)
        filters[f"{names.FILTERS}.ext_authz"] = pack(ExtAuthzPerRoute(check_settings=settings))
    if routing.cors is not None:
        filters[f"{names.FILTERS}.cors"] = pack(_cors(routing.cors))
    if routing.picker is not None:
        filters |= picker_route(endpoint.id)
    if routing.affinity_cookie:
        filters[f"{names.FILTERS}.stateful_session"] = pack(_affinity(routing))
    return filters


def _permissions(endpoint: Endpoint) -> rbac_pb2.RBACPerRoute:
    """Returns who may enter: tokens of this endpoint that are not revoked, from networks that are allowed."""
    needed: list[Principal] = []
    if endpoint.access.source_ranges:
        sources = [Principal(remote_ip=cidr(network)) for network in endpoint.access.source_ranges]
        needed.append(_any_of(sources))
    if not endpoint.access.public:
        needed.append(_claim("aud", endpoint.id))
        if endpoint.access.revoked:
            revoked = [_claim("jti", token) for token in endpoint.access.revoked]
            needed.append(Principal(not_id=_any_of(revoked)))
    policy = Policy(permissions=[Permission(any=True)], principals=[Principal(and_ids=Principal.Set(ids=needed))])
    rules = RBAC(action=RBAC.ALLOW, policies={"access": policy})
    return rbac_pb2.RBACPerRoute(rbac=rbac_pb2.RBAC(rules=rules))


def _any_of(principals: list[Principal]) -> Principal:
    return Principal(or_ids=Principal.Set(ids=principals))


def _claim(name: str, value: str) -> Principal:
    matcher = MetadataMatcher(
        filter=names.JWT_FILTER,
        path=[MetadataMatcher.PathSegment(key=names.JWT_PAYLOAD), MetadataMatcher.PathSegment(key=name)],
        value=ValueMatcher(string_match=StringMatcher(exact=value)),
    )
    return Principal(sourced_metadata=SourcedMetadata(metadata_matcher=matcher, metadata_source=MetadataSource.DYNAMIC))


def _rate(access: Access) -> LocalRateLimit:
    """Returns the limit of each caller: a bucket per token, or per address of a public endpoint."""
    if access.public:
        key, action = "remote_address", RateLimit.Action(remote_address=RateLimit.Action.RemoteAddress())
    else:
        path = [MetadataKey.PathSegment(key=names.JWT_PAYLOAD), MetadataKey.PathSegment(key="jti")]
        key = "token"
        where = MetadataKey(key=names.JWT_FILTER, path=path)
        action = RateLimit.Action(metadata=RateLimit.Action.MetaData(descriptor_key=key, metadata_key=where))
    bucket = TokenBucket(
        max_tokens=access.rate_requests,
        tokens_per_fill=number(access.rate_requests),
        fill_interval=duration(access.rate_period),
    )
    every = RuntimeFractionalPercent(default_value=FractionalPercent(numerator=100))
    entry = RateLimitDescriptor.Entry(key=key)
    return LocalRateLimit(
        stat_prefix="rate",
        token_bucket=TokenBucket(max_tokens=_UNLIMITED, tokens_per_fill=number(_UNLIMITED), fill_interval=duration(1)),
        filter_enabled=every,
        filter_enforced=every,
        rate_limits=[RateLimit(actions=[action])],
        descriptors=[LocalRateLimitDescriptor(entries=[entry], token_bucket=bucket)],
        max_dynamic_descriptors=number(_MAX_CALLERS),
        always_consume_default_token_bucket=FALSE,
    )


def _cors(cors: Cors) -> CorsPolicy:
    return CorsPolicy(
        allow_origin_string_match=[
            StringMatcher(safe_regex=regex(".*")) if origin == "*" else StringMatcher(exact=origin)
            for origin in cors.origins
        ],
        allow_methods=", ".join(cors.methods),
        allow_headers=", ".join(cors.headers),
        allow_credentials=TRUE if cors.credentials else FALSE,
        max_age=str(round(cors.max_age)),
    )


def _affinity(routing: Routing) -> StatefulSessionPerRoute:
    cookie = Cookie(name=routing.affinity_cookie, path="/", ttl=duration(routing.affinity_lifetime))
    state = extension("envoy.http.stateful_session.cookie", CookieBasedSessionState(cookie=cookie))
    return StatefulSessionPerRoute(stateful_session=StatefulSession(session_state=state))
