"""Where a request to a private endpoint has its token, and how it is kept from the program and from logs. Pure.

Browsers can set no header of a WebSocket or an EventSource: their token is in a subprotocol, or in the address.
Programs have use for `Authorization` themselves: where the token is elsewhere, theirs passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from envoy.config.route.v3.route_components_pb2 import HeaderMatcher, QueryParameterMatcher, RouteMatch
from envoy.extensions.filters.http.jwt_authn.v3.config_pb2 import (
    JwtAuthentication,
    JwtCacheConfig,
    JwtHeader,
    JwtProvider,
    JwtRequirement,
    PerRouteConfig,
)
from envoy.extensions.filters.http.lua.v3.lua_pb2 import Lua, LuaPerRoute
from envoy.type.matcher.v3.string_pb2 import StringMatcher

from retinue.proxy.core.fields import FALSE, pack, text
from retinue.router.core import names

if TYPE_CHECKING:
    from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
    from google.protobuf.any_pb2 import Any as AnyMessage

PARAMETER = "access_token"
SUBPROTOCOL = "bearer.authorization.retinue."
_LUA = f"{names.FILTERS}.lua"
_BEARER, _KEY = "authorization", "api-key"
_CLOCK_SKEW_SECONDS, _CACHED_TOKENS = 5, 1000


@dataclass(frozen=True, slots=True)
class Place:
    """A place of the token: what matches its requests, the header that has the token when it is looked at, whether it
    has to be moved there, and the headers that are taken away from the program then.
    """

    match: RouteMatch
    header: str
    removed: tuple[str, ...]
    moved: bool = False

    def filters(self) -> dict[str, AnyMessage]:
        """Returns the settings of a route whose requests have their token here."""
        settings = {names.JWT_FILTER: pack(PerRouteConfig(requirement_name=self.header))}
        if self.moved:
            settings[_LUA] = pack(LuaPerRoute(source_code=text(_SCRIPT)))
        return settings


def _contains(header: str, part: str) -> HeaderMatcher:
    return HeaderMatcher(name=header, string_match=StringMatcher(contains=part))


# How endpoints' tokens begin: a header of JWT as the manager writes it.
_BEGINNING = "eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9."
_HAS_KEY = HeaderMatcher(name=_KEY, present_match=True)
PLACES = (
    # A client that gives the same token in both headers gives it to the router both times.
    Place(RouteMatch(headers=[_HAS_KEY, _contains(_BEARER, _BEGINNING)]), _KEY, (_KEY, _BEARER)),
    Place(RouteMatch(headers=[_HAS_KEY]), _KEY, (_KEY,)),
    Place(
        RouteMatch(query_parameters=[QueryParameterMatcher(name=PARAMETER, present_match=True)]),
        _KEY,
        (_KEY,),
        moved=True,
    ),
    Place(RouteMatch(headers=[_contains("sec-websocket-protocol", SUBPROTOCOL)]), _KEY, (_KEY,), moved=True),
    Place(RouteMatch(), _BEARER, (_BEARER,)),
)
"""The first that matches counts."""


def token_filters(key_set: str) -> list[HttpFilter]:
    """Returns the filters that move a token, and look at it: by the public key of tokens, a JSON Web Key Set."""
    providers = {
        _BEARER: _provider(key_set, JwtHeader(name=_BEARER, value_prefix="Bearer ")),
        _KEY: _provider(key_set, JwtHeader(name=_KEY)),
    }
    requirements = {name: JwtRequirement(provider_name=name) for name in providers}
    return [
        # The route was chosen by the very token that is taken away.
        names.optional_filter("lua", Lua(clear_route_cache=FALSE)),
        names.optional_filter("jwt_authn", JwtAuthentication(providers=providers, requirement_map=requirements)),
    ]


def _provider(key_set: str, header: JwtHeader) -> JwtProvider:
    return JwtProvider(
        issuer="retinue",
        local_jwks=text(key_set),
        from_headers=[header],
        payload_in_metadata=names.JWT_PAYLOAD,
        require_expiration=True,
        clock_skew_seconds=_CLOCK_SKEW_SECONDS,
        jwt_cache_config=JwtCacheConfig(jwt_cache_size=_CACHED_TOKENS),
    )


# A browser gives a connection up whose subprotocols were all refused. If it offers none but the token, there is no
# program to choose another.
_SCRIPT = f"""
local function split(text, separator)
  local parts = {{}}
  for part in (text .. separator):gmatch("(.-)" .. separator) do parts[#parts + 1] = part end
  return parts
end

function envoy_on_request(handle)
  local headers, token = handle:headers(), nil
  local path, query = headers:get(":path"):match("^([^?]*)%?(.*)$")
  if query then
    local kept = {{}}
    for _, part in ipairs(split(query, "&")) do
      local value = part:match("^{PARAMETER}=(.*)$")
      if value then token = token or value
      elseif part ~= "{PARAMETER}" then kept[#kept + 1] = part end
    end
    if token then headers:replace(":path", #kept > 0 and path .. "?" .. table.concat(kept, "&") or path) end
  end
  local offered, own = {{}}, nil
  for index = 0, headers:getNumValues("sec-websocket-protocol") - 1 do
    for _, part in ipairs(split(headers:getAtIndex("sec-websocket-protocol", index), ",")) do
      local name = part:match("^%s*(.-)%s*$")
      local value = name:match("^{SUBPROTOCOL.replace(".", "%.")}(.*)$")
      if value then token, own = token or value, name else offered[#offered + 1] = name end
    end
  end
  if own then
    headers:remove("sec-websocket-protocol")
    if #offered > 0 then headers:add("sec-websocket-protocol", table.concat(offered, ", "))
    else handle:streamInfo():dynamicMetadata():set("{names.METADATA}", "subprotocol", own) end
  end
  if (headers:get("{_BEARER}") or ""):find("{_BEGINNING}", 1, true) then headers:remove("{_BEARER}") end
  headers:replace("{_KEY}", token or "")
end

function envoy_on_response(handle)
  local own = (handle:streamInfo():dynamicMetadata():get("{names.METADATA}") or {{}}).subprotocol
  local headers = handle:headers()
  if own and headers:get(":status") == "101" and not headers:get("sec-websocket-protocol") then
    headers:add("sec-websocket-protocol", own)
  end
end
"""
