"""Builds the engine's configuration for a gateway: what a request passes. Pure. `connections` says where it goes then.

A browser's access is a route of its own: it matches requests that hold the browser's cookie and whose source is
certain, and these never leave the engine. The manager is asked about every other request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envoy.config.accesslog.v3.accesslog_pb2 import (
    AccessLogFilter,
    ComparisonFilter,
    OrFilter,
    ResponseFlagFilter,
    StatusCodeFilter,
)
from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap
from envoy.config.common.mutation_rules.v3.mutation_rules_pb2 import HeaderMutation as Mutation
from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption, Node, RuntimeUInt32
from envoy.config.core.v3.config_source_pb2 import ApiVersion
from envoy.config.core.v3.grpc_service_pb2 import GrpcService
from envoy.config.core.v3.substitution_format_string_pb2 import SubstitutionFormatString
from envoy.config.listener.v3.listener_components_pb2 import FilterChain, ListenerFilter
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.metrics.v3.stats_pb2 import StatsConfig
from envoy.config.route.v3.route_components_pb2 import (
    FilterConfig,
    HeaderMatcher,
    Route,
    RouteAction,
    RouteMatch,
    VirtualHost,
)
from envoy.extensions.common.matching.v3.extension_matcher_pb2 import ExtensionWithMatcher
from envoy.extensions.filters.common.matcher.action.v3.skip_action_pb2 import SkipFilter
from envoy.extensions.filters.http.ext_authz.v3.ext_authz_pb2 import ExtAuthz
from envoy.extensions.filters.http.header_mutation.v3.header_mutation_pb2 import HeaderMutation, Mutations
from envoy.extensions.filters.http.lua.v3.lua_pb2 import Lua
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from envoy.extensions.filters.listener.tls_inspector.v3.tls_inspector_pb2 import TlsInspector
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
    HttpFilter,
    LocalReplyConfig,
    Rds,
    ResponseMapper,
)
from envoy.type.matcher.v3.http_inputs_pb2 import HttpResponseHeaderMatchInput
from envoy.type.matcher.v3.string_pb2 import StringMatcher
from envoy.type.v3.http_status_pb2 import HttpStatus, StatusCode
from xds.core.v3 import extension_pb2 as xds
from xds.type.matcher.v3 import regex_pb2, string_pb2
from xds.type.matcher.v3.matcher_pb2 import Matcher

from retinue.manager.gateway.core import connections, pages
from retinue.manager.gateway.core.connections import service_cluster
from retinue.manager.gateway.core.rules import OPEN_PATH, Address, Target
from retinue.proxy.core import http
from retinue.proxy.core.fields import (
    ADS,
    ADS_CLUSTER,
    FALSE,
    certificate_secret,
    client_limit,
    duration,
    dynamic_resources,
    extension,
    network_filter,
    number,
    pack,
    regex,
    server_tls,
    socket_address,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
    from google.protobuf.any_pb2 import Any as AnyMessage
    from google.protobuf.message import Message

LISTENER = ROUTES = CERTIFICATE = "ports"
AUTHORIZATION_CLUSTER = "authorization"
# Set by the manager for a request that it lets pass: the cluster to send it to. Taken away before the program.
CLUSTER = "x-retinue-cluster"
# By which the manager's two services know the engine.
KEY = "x-retinue-key"

_FILTERS = "envoy.filters.http"
_ASK, _OWN_COOKIE, _SET_COOKIE = f"{_FILTERS}.ext_authz", f"{_FILTERS}.lua", "set-cookie"
_HEADERS_SECONDS, _CONNECTION_IDLE_SECONDS = 10, 120
_ASK_SECONDS = 20
_MAX_BROWSERS = 50_000
_RETRIES = 2


@dataclass(frozen=True, slots=True)
class Granted:
    """A browser's access: the address that it is for, the secret in its cookie,
    and the cluster that its requests go to. `host` is the one that the program sees, empty for the browser's.
    """

    target: Target
    secret: str = field(repr=False)
    cluster: str
    host: str = ""


def bootstrap(ads_socket: str, authorization_socket: str, traffic_socket: str, key: str) -> Bootstrap:
    """Returns the first configuration: the manager's services, at sockets of these abstract names.
    There is no port for administration.
    """
    services = {
        ADS_CLUSTER: ads_socket,
        AUTHORIZATION_CLUSTER: authorization_socket,
        connections.TRAFFIC_CLUSTER: traffic_socket,
    }
    return Bootstrap(
        node=Node(id="gateway", cluster="retinue"),
        dynamic_resources=dynamic_resources(_call(ADS_CLUSTER, key)),
        bootstrap_extensions=[connections.EXTENSION],
        stats_sinks=[connections.sink(_call(connections.TRAFFIC_CLUSTER, key))],
        stats_flush_interval=duration(connections.TRAFFIC_SECONDS),
        stats_config=StatsConfig(stats_matcher=connections.STATISTICS),
        overload_manager=client_limit(_MAX_BROWSERS),
        static_resources=Bootstrap.StaticResources(
            clusters=[service_cluster(name, socket) for name, socket in services.items()]
        ),
    )


def listener(host: str, port: int, address: Address, key: str) -> Listener:
    """Returns the listener. While a gateway runs, nothing of it changes but the chains of `tunnel_chain` after this
    one, which is for HTTP.
    """
    chain = FilterChain(
        filters=[network_filter("http", _manager(address, key))],
        transport_socket=server_tls(CERTIFICATE) if address.secure else None,
    )
    return Listener(
        name=LISTENER,
        address=socket_address(host, port),
        enable_reuse_port=FALSE,
        per_connection_buffer_limit_bytes=number(connections.BUFFER_BYTES),
        socket_options=http.patience(),
        # Tunnels are distinguished by the name that clients say in TLS.
        listener_filters=[ListenerFilter(name="tls", typed_config=pack(TlsInspector()))],
        listener_filters_timeout=duration(_HEADERS_SECONDS),
        filter_chains=[chain],
    )


def secret(certificate: tuple[bytes, bytes]) -> Secret:
    """Returns the certificate: chain and key in PEM."""
    chain, key = (part.decode() for part in certificate)
    return certificate_secret(CERTIFICATE, chain, key)


def virtual_host(address: Address, target: Target, granted: Iterable[Route] = ()) -> VirtualHost:
    """Returns the virtual host of a port: its first route is before those of accesses, its last one after them."""
    return VirtualHost(
        name=f"{target.port}-{target.session_id.hex}",
        domains=_domains(address, address.origin(target)),
        routes=[_asked(OPEN_PATH.rpartition("/")[0] + "/"), *granted, _asked()],
    )


def console_host(address: Address) -> VirtualHost:
    """Returns the virtual host of the web console: all of its requests go to the manager, without a question,
    and with their cookies.
    """
    route = Route(
        match=RouteMatch(prefix="/"),
        route=_forwarding(RouteAction(cluster=connections.CONSOLE_CLUSTER)),
        typed_per_filter_config=_disabled(_ASK, _OWN_COOKIE, _SET_COOKIE),
        request_headers_to_add=_forwarded_headers(),
    )
    domains = _domains(address, address.console_origin)
    return VirtualHost(name=connections.CONSOLE_CLUSTER, domains=domains, routes=[route])


def _domains(address: Address, origin: str) -> list[str]:
    host = origin.partition("://")[2]
    return sorted({host, f"{host.partition(':')[0]}:{address.number}"})


def other_hosts() -> VirtualHost:
    """Returns the virtual host of all other names: the manager knows what these are."""
    return VirtualHost(name="other", domains=["*"], routes=[_asked()])


def _asked(prefix: str = "/") -> Route:
    action = _forwarding(RouteAction(cluster_header=CLUSTER))
    return Route(match=RouteMatch(prefix=prefix), route=action, request_headers_to_add=_forwarded_headers())


def granted_routes(address: Address, access: Granted) -> list[Route]:
    """Returns routes without a question: of requests whose only cookie is the secret, which cost the least,
    and of all others that hold it.

    Whatever a page may have caused from elsewhere does not match, and is asked about.
    """
    # Any holder of the secret may enter, wherever in the header it is.
    only = StringMatcher(exact=f"{address.cookie}={access.secret}")
    alone = _granted(address, access, only, _ASK, _OWN_COOKIE)
    alone.request_headers_to_remove.append("cookie")
    return [alone, _granted(address, access, StringMatcher(contains=access.secret), _ASK)]


def _granted(address: Address, access: Granted, cookie: StringMatcher, *unneeded: str) -> Route:
    headers = [
        HeaderMatcher(name="cookie", string_match=cookie),
        _empty_or("origin", re.escape(address.origin(access.target))),
        _empty_or("sec-fetch-site", "none|same-origin"),
    ]
    return Route(
        match=RouteMatch(prefix="/", headers=headers),
        route=_forwarding(RouteAction(cluster=access.cluster)),
        # Left out of the chain for such a request: a filter that is there and does nothing costs a fifth of one.
        typed_per_filter_config=_disabled(*unneeded),
        request_headers_to_add=_forwarded_headers(access.host),
    )


def _disabled(*filters: str) -> dict[str, AnyMessage]:
    return {name: pack(FilterConfig(disabled=True)) for name in filters}


def _empty_or(name: str, expression: str) -> HeaderMatcher:
    pattern = StringMatcher(safe_regex=regex(f"(?:{expression})?"))
    return HeaderMatcher(name=name, string_match=pattern, treat_missing_header_as_empty=True)


def _forwarding(action: RouteAction) -> RouteAction:
    """Returns an action that has a destination, with how requests are sent there."""
    # Programs may be silent for as long as they like.
    action.timeout.CopyFrom(duration(0))
    action.idle_timeout.CopyFrom(duration(0))
    # Only what was not sent is sent again.
    action.retry_policy.retry_on = "connect-failure,refused-stream,reset-before-request"
    action.retry_policy.num_retries.value = _RETRIES
    # By the cluster, where it names a host.
    action.auto_host_rewrite.value = True
    return action


def origin_of(host: str) -> str:
    """Returns the origin of a program's own address."""
    return f"http://{host}"


def _forwarded_headers(host: str = "") -> list[HeaderValueOption]:
    headers = http.forwarded(
        {
            "x-forwarded-for": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
            "x-forwarded-host": "%REQ(:AUTHORITY)%",
        }
    )
    if host:
        headers.append(http.header("origin", origin_of(host), HeaderValueOption.OVERWRITE_IF_EXISTS))
    return headers


def _manager(address: Address, key: str) -> HttpConnectionManager:
    own = HttpConnectionManager(
        # Browsers speak HTTP/2 over TLS only.
        codec_type=HttpConnectionManager.AUTO if address.secure else HttpConnectionManager.HTTP1,
        stat_prefix="ports",
        rds=Rds(route_config_name=ROUTES, config_source=ADS),
        http_filters=_filters(address, key),
        generate_request_id=FALSE,
        stream_idle_timeout=duration(0),
        local_reply_config=_local_replies(),
    )
    return http.clients(own, headers_seconds=_HEADERS_SECONDS, idle_seconds=_CONNECTION_IDLE_SECONDS)


def _filters(address: Address, key: str) -> list[HttpFilter]:
    service = _call(AUTHORIZATION_CLUSTER, key)
    service.timeout.CopyFrom(duration(_ASK_SECONDS))
    ask = ExtAuthz(
        grpc_service=service,
        transport_api_version=ApiVersion.V3,
        # The route is chosen again, by the cluster that the manager names.
        clear_route_cache=True,
        status_on_error=HttpStatus(code=_FAILED),
        # One by one, as they came.
        encode_raw_headers=True,
    )
    filters = {
        _ASK: ask,
        _OWN_COOKIE: _script(cookie_script(address.cookie)),
        _SET_COOKIE: _with_header("set-cookie", f"{_FILTERS}.lua", _script(DOMAIN_SCRIPT)),
        f"{_FILTERS}.header_mutation": HeaderMutation(mutations=_without_ours()),
        f"{_FILTERS}.router": Router(suppress_envoy_headers=True),
    }
    return [HttpFilter(name=name, typed_config=pack(settings)) for name, settings in filters.items()]


def _script(source: str) -> Lua:
    # The route was chosen by the very cookie that is taken away.
    return Lua(default_source_code=text(source), clear_route_cache=FALSE)


def _with_header(header: str, name: str, settings: Message) -> ExtensionWithMatcher:
    """Returns a filter that is passed by unless an answer has a header: to start a script costs more than to look."""
    predicate = Matcher.MatcherList.Predicate
    value = _matched("header", HttpResponseHeaderMatchInput(header_name=header))
    anything = regex_pb2.RegexMatcher(google_re2=regex_pb2.RegexMatcher.GoogleRE2(), regex="(?s).*")
    there = predicate.SinglePredicate(input=value, value_match=string_pb2.StringMatcher(safe_regex=anything))
    matcher = Matcher.MatcherList.FieldMatcher(
        predicate=predicate(not_matcher=predicate(single_predicate=there)),
        on_match=Matcher.OnMatch(action=_matched("skip", SkipFilter())),
    )
    return ExtensionWithMatcher(
        extension_config=extension(name, settings),
        xds_matcher=Matcher(matcher_list=Matcher.MatcherList(matchers=[matcher])),
    )


def _matched(name: str, settings: Message) -> xds.TypedExtensionConfig:
    return xds.TypedExtensionConfig(name=name, typed_config=pack(settings))


def _without_ours() -> Mutations:
    """Returns what keeps headers from programs that are the gateway's or the engine's."""
    prefixes = ("x-retinue-", "x-envoy-")
    removals = [
        Mutation(remove_on_match=Mutation.RemoveOnMatch(key_matcher=StringMatcher(prefix=prefix)))
        for prefix in prefixes
    ]
    return Mutations(request_mutations=removals)


# The status when the manager does not respond; it gives none of these itself.
_FAILED = StatusCode.BadGateway


def _local_replies() -> LocalReplyConfig:
    """Returns the pages for when a program breaks off, or a relay, or the manager, is not there."""
    value = RuntimeUInt32(default_value=_FAILED, runtime_key="retinue.failed")
    comparison = ComparisonFilter(op=ComparisonFilter.EQ, value=value)
    no_manager = AccessLogFilter(status_code_filter=StatusCodeFilter(comparison=comparison))
    no_relay = _flags("UF", "UH", "NC", "UR", "LR")
    neither = AccessLogFilter(or_filter=OrFilter(filters=[no_relay, no_manager]))
    return LocalReplyConfig(
        mappers=[
            _reply(_flags("UC", "UPE"), pages.BROKEN),
            _reply(_flags("UO"), pages.BUSY),
            _reply(neither, pages.UNREACHABLE),
        ]
    )


def _flags(*flags: str) -> AccessLogFilter:
    return AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=flags))


def _reply(when: AccessLogFilter, page: pages.Page) -> ResponseMapper:
    return ResponseMapper(
        filter=when,
        status_code=number(page.status.value),
        body_format_override=SubstitutionFormatString(
            text_format_source=text(page.body().decode().replace("%", "%%")),
            content_type=pages.HEADERS["Content-Type"],
        ),
        headers_to_add=[http.header(name, value) for name, value in pages.HEADERS.items() if name != "Content-Type"],
    )


_EACH = """
local function each(headers, name, changed)
  local count = headers:getNumValues(name)
  if count == 0 then return end
  local kept = {}
  for index = 0, count - 1 do
    local value = changed(headers:getAtIndex(name, index))
    if value ~= "" then kept[#kept + 1] = value end
  end
  headers:remove(name)
  for _, value in ipairs(kept) do headers:add(name, value) end
end
"""
DOMAIN_SCRIPT = f"""{_EACH}
function without_domain(value)
  return (value:gsub(";%s*[Dd][Oo][Mm][Aa][Ii][Nn]%s*=[^;]*", ""))
end

function envoy_on_response(handle)
  each(handle:headers(), "set-cookie", without_domain)
end
"""
"""The script, in Lua, that keeps other hosts of the domain from programs' cookies."""


def cookie_script(cookie: str) -> str:
    """Returns the script, in Lua, that keeps the gateway's cookie from programs.

    When it runs, the route was chosen, by the very cookie that it takes away.
    """
    return f"""{_EACH}
function without_own(value)
  local rest = {{}}
  for part in value:gmatch("[^;]+") do
    part = part:match("^%s*(.-)%s*$")
    if part ~= "" and part:match("^([^=]-)%s*=") ~= "{_escaped(cookie)}" and part ~= "{_escaped(cookie)}" then
      rest[#rest + 1] = part
    end
  end
  return table.concat(rest, "; ")
end

function envoy_on_request(handle)
  each(handle:headers(), "cookie", without_own)
end
"""


def _escaped(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_-]+", text) is None:
        raise ValueError(f"{text!r} is no name of a cookie")
    return text


def _call(cluster: str, key: str) -> GrpcService:
    return GrpcService(
        envoy_grpc=GrpcService.EnvoyGrpc(cluster_name=cluster), initial_metadata=[HeaderValue(key=KEY, value=key)]
    )
