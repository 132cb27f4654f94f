"""Builds the engine's configuration for a gateway: what a request passes. Pure. `connections` says where it goes then.

A browser's access is a route of its own: it matches requests that hold the browser's cookie and whose source is
certain, and these never leave the engine. The manager is asked about every other request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from retinue.manager.gateway.core import connections, pages
from retinue.manager.gateway.core.connections import pipe
from retinue.manager.gateway.core.rules import OPEN_PATH, Address, Target
from retinue.proxy.core import http
from retinue.proxy.core.fields import (
    ADS,
    ADS_CLUSTER,
    Json,
    certificate_secret,
    client_limit,
    duration,
    dynamic_resources,
    server_tls,
    typed,
)

LISTENER = ROUTES = CERTIFICATE = "ports"
AUTHORIZATION_CLUSTER = "authorization"
# Set by the manager for a request that it lets pass: the cluster to send it to. Taken away before the program.
CLUSTER = "x-retinue-cluster"
# By which the manager's two services know the engine.
KEY = "x-retinue-key"

_HTTP = "extensions.filters.http"
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


def bootstrap(ads_socket: str, authorization_socket: str, traffic_socket: str, key: str) -> Json:
    """Returns the first configuration: the manager's services, at sockets of these abstract names.
    There is no port for administration.
    """
    call = _call(ADS_CLUSTER, key)
    return {
        "node": {"id": "gateway", "cluster": "retinue"},
        "dynamic_resources": dynamic_resources(call),
        "bootstrap_extensions": [connections.EXTENSION],
        "stats_sinks": [connections.sink(_call(connections.TRAFFIC_CLUSTER, key))],
        "stats_flush_interval": duration(connections.TRAFFIC_SECONDS),
        "stats_config": {"stats_matcher": connections.STATISTICS},
        "overload_manager": client_limit(_MAX_BROWSERS),
        "static_resources": {
            "clusters": [
                pipe(name, socket)
                for name, socket in (
                    (ADS_CLUSTER, ads_socket),
                    (AUTHORIZATION_CLUSTER, authorization_socket),
                    (connections.TRAFFIC_CLUSTER, traffic_socket),
                )
            ]
        },
    }


def listener(host: str, port: int, address: Address, key: str) -> Json:
    """Returns the listener. While a gateway runs, nothing of it changes but the chains of `tunnel_chain` after this
    one, which is for HTTP.
    """
    chain: Json = {"filters": [{"name": "http", "typed_config": _manager(address, key)}]}
    if address.secure:
        chain["transport_socket"] = server_tls(CERTIFICATE)
    return {
        "name": LISTENER,
        "address": {"socket_address": {"address": host, "port_value": port}},
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": connections.BUFFER_BYTES,
        **http.patience(),
        # Tunnels are distinguished by the name that clients say in TLS.
        "listener_filters": [
            {"name": "tls", "typed_config": typed("extensions.filters.listener.tls_inspector.v3.TlsInspector")}
        ],
        "listener_filters_timeout": duration(_HEADERS_SECONDS),
        "filter_chains": [chain],
    }


def secret(certificate: tuple[bytes, bytes]) -> Json:
    """Returns the certificate: chain and key in PEM."""
    chain, key = (part.decode() for part in certificate)
    return certificate_secret(CERTIFICATE, chain, key)


def virtual_host(address: Address, target: Target) -> Json:
    """Returns the virtual host of a port: its first route is before those of accesses, its last one after them."""
    asked = _asked()
    own = {**asked, "match": {"prefix": OPEN_PATH.rpartition("/")[0] + "/"}}
    return {
        "name": f"{target.port}-{target.session_id.hex}",
        "domains": _domains(address, address.origin(target)),
        "routes": [own, asked],
    }


def console_host(address: Address) -> Json:
    """Returns the virtual host of the web console: all of its requests go to the manager, without a question,
    and with their cookies.
    """
    unneeded = (_ASK, _OWN_COOKIE, _SET_COOKIE)
    return {
        "name": connections.CONSOLE_CLUSTER,
        "domains": _domains(address, address.console_origin),
        "routes": [
            {
                "match": {"prefix": "/"},
                "route": {"cluster": connections.CONSOLE_CLUSTER, **_forwarding()},
                "typed_per_filter_config": _disabled(*unneeded),
                **_forwarded_headers(),
            }
        ],
    }


def _domains(address: Address, origin: str) -> list[str]:
    host = origin.partition("://")[2]
    return sorted({host, f"{host.partition(':')[0]}:{address.number}"})


def other_hosts() -> Json:
    """Returns the virtual host of all other names: the manager knows what these are."""
    return {"name": "other", "domains": ["*"], "routes": [_asked()]}


def _asked() -> Json:
    return {
        "match": {"prefix": "/"},
        "route": {"cluster_header": CLUSTER, **_forwarding()},
        **_forwarded_headers(),
    }


def granted_routes(address: Address, access: Granted) -> list[Json]:
    """Returns routes without a question: of requests whose only cookie is the secret, which cost the least,
    and of all others that hold it.

    Whatever a page may have caused from elsewhere does not match, and is asked about.
    """
    # Any holder of the secret may enter, wherever in the header it is.
    alone = _granted(address, access, {"exact": f"{address.cookie}={access.secret}"}, _ASK, _OWN_COOKIE)
    alone["request_headers_to_remove"] = ["cookie"]
    return [alone, _granted(address, access, {"contains": access.secret}, _ASK)]


def _granted(address: Address, access: Granted, cookie: Json, *unneeded: str) -> Json:
    headers = [
        {"name": "cookie", "string_match": cookie},
        _empty_or("origin", re.escape(address.origin(access.target))),
        _empty_or("sec-fetch-site", "none|same-origin"),
    ]
    return {
        "match": {"prefix": "/", "headers": headers},
        "route": {"cluster": access.cluster, **_forwarding()},
        # Left out of the chain for such a request: a filter that is there and does nothing costs a fifth of one.
        "typed_per_filter_config": _disabled(*unneeded),
        **_forwarded_headers(access.host),
    }


def _disabled(*filters: str) -> Json:
    return {name: typed("config.route.v3.FilterConfig", disabled=True) for name in filters}


def _empty_or(name: str, expression: str) -> Json:
    pattern = {"safe_regex": {"regex": f"(?:{expression})?"}}
    return {"name": name, "string_match": pattern, "treat_missing_header_as_empty": True}


def _forwarding() -> Json:
    # Only what was not sent is sent again. Programs may be silent for as long as they like.
    retry = {"retry_on": "connect-failure,refused-stream,reset-before-request", "num_retries": _RETRIES}
    # By the cluster, where it names a host.
    return {"timeout": duration(0), "idle_timeout": duration(0), "retry_policy": retry, "auto_host_rewrite": True}


def origin_of(host: str) -> str:
    """Returns the origin of a program's own address."""
    return f"http://{host}"


def _forwarded_headers(host: str = "") -> Json:
    fields = http.forwarded(
        {
            "x-forwarded-for": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
            "x-forwarded-host": "%REQ(:AUTHORITY)%",
        }
    )
    if host:
        origin = {"header": {"key": "origin", "value": origin_of(host)}, "append_action": "OVERWRITE_IF_EXISTS"}
        fields["request_headers_to_add"].append(origin)
    return fields


def _manager(address: Address, key: str) -> Json:
    return http.clients(
        headers_seconds=_HEADERS_SECONDS,
        idle_seconds=_CONNECTION_IDLE_SECONDS,
        # Browsers speak HTTP/2 over TLS only.
        codec_type="AUTO" if address.secure else "HTTP1",
        stat_prefix="ports",
        rds={"route_config_name": ROUTES, "config_source": ADS},
        http_filters=_filters(address, key),
        generate_request_id=False,
        stream_idle_timeout=duration(0),
        local_reply_config=_local_replies(),
    )


def _filters(address: Address, key: str) -> list[Json]:
    return [
        {
            "name": _ASK,
            "typed_config": typed(
                f"{_HTTP}.ext_authz.v3.ExtAuthz",
                grpc_service={**_call(AUTHORIZATION_CLUSTER, key), "timeout": duration(_ASK_SECONDS)},
                transport_api_version="V3",
                # The route is chosen again, by the cluster that the manager names.
                clear_route_cache=True,
                status_on_error={"code": _FAILED},
                # One by one, as they came.
                encode_raw_headers=True,
            ),
        },
        {
            "name": _OWN_COOKIE,
            "typed_config": _script(cookie_script(address.cookie)),
        },
        {
            "name": _SET_COOKIE,
            "typed_config": _with_header("set-cookie", f"{_FILTERS}.lua", _script(DOMAIN_SCRIPT)),
        },
        {
            "name": f"{_FILTERS}.header_mutation",
            "typed_config": typed(f"{_HTTP}.header_mutation.v3.HeaderMutation", mutations=_without_ours()),
        },
        {
            "name": f"{_FILTERS}.router",
            "typed_config": typed(f"{_HTTP}.router.v3.Router", suppress_envoy_headers=True),
        },
    ]


def _script(source: str) -> Json:
    # The route was chosen by the very cookie that is taken away.
    return typed(f"{_HTTP}.lua.v3.Lua", default_source_code={"inline_string": source}, clear_route_cache=False)


def _with_header(header: str, name: str, settings: Json) -> Json:
    """Returns a filter that is passed by unless an answer has a header: to start a script costs more than to look."""
    value = typed("type.matcher.v3.HttpResponseHeaderMatchInput", header_name=header)
    anything = {"safe_regex": {"google_re2": {}, "regex": "(?s).*"}}
    there = {"single_predicate": {"input": {"name": "header", "typed_config": value}, "value_match": anything}}
    skip = {"name": "skip", "typed_config": typed("extensions.filters.common.matcher.action.v3.SkipFilter")}
    matcher = {"predicate": {"not_matcher": there}, "on_match": {"action": skip}}
    return typed(
        "extensions.common.matching.v3.ExtensionWithMatcher",
        extension_config={"name": name, "typed_config": settings},
        xds_matcher={"matcher_list": {"matchers": [matcher]}},
    )


def _without_ours() -> Json:
    """Returns what keeps headers from programs that are the gateway's or the engine's."""
    prefixes = ("x-retinue-", "x-envoy-")
    removals = [{"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in prefixes]
    return {"request_mutations": removals}


# The status when the manager does not respond; it gives none of these itself.
_FAILED = 502


def _local_replies() -> Json:
    """Returns the pages for when a program breaks off, or a relay, or the manager, is not there."""
    value = {"default_value": _FAILED, "runtime_key": "retinue.failed"}
    no_manager = {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}
    no_relay = _flags("UF", "UH", "NC", "UR", "LR")
    return {
        "mappers": [
            _reply(_flags("UC", "UPE"), pages.BROKEN),
            _reply(_flags("UO"), pages.BUSY),
            _reply({"or_filter": {"filters": [no_relay, no_manager]}}, pages.UNREACHABLE),
        ]
    }


def _flags(*flags: str) -> Json:
    return {"response_flag_filter": {"flags": list(flags)}}


def _reply(when: Json, page: pages.Page) -> Json:
    headers = [
        {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        for name, value in pages.HEADERS.items()
        if name != "Content-Type"
    ]
    return {
        "filter": when,
        "status_code": page.status.value,
        "body_format_override": {
            "text_format_source": {"inline_string": page.body().decode().replace("%", "%%")},
            "content_type": pages.HEADERS["Content-Type"],
        },
        "headers_to_add": headers,
    }


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


def _call(cluster: str, key: str) -> Json:
    return {"envoy_grpc": {"cluster_name": cluster}, "initial_metadata": [{"key": KEY, "value": key}]}
