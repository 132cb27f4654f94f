"""What both edges, the listener of endpoints and that of ports of sessions, do with HTTP: what nginx and the balancers
of the large clouds do where nobody has set them up otherwise. Programs get requests, and clients get answers, as they
were sent. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.config.core.v3.protocol_pb2 import Http1ProtocolOptions, Http2ProtocolOptions, HttpProtocolOptions
from envoy.config.core.v3.socket_option_pb2 import SocketOption
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2
from envoy.type.matcher.v3.string_pb2 import StringMatcher

from retinue.proxy.core.fields import FALSE, TRUE, cidr, duration, number, pack, regex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.any_pb2 import Any as AnyMessage

# Of a request, and of an answer, all lines together; a proxy of the large clouds before this one passes as much.
_HEADERS_KIB, _HEADER_LINES = 64, 1000
_WINDOW, _STREAMS = 1 << 20, 256
_WEBSOCKET = "websocket"
# Of a client that is there, and takes no byte of what is sent to it.
_STALLED_SECONDS = 900
# The same where the connection ends with the answer; and how long a client may take to read one that it got before it
# has sent all: what it sends in the meantime would break the connection off. Between `lingering_timeout` and
# `send_timeout` of nginx, as the engine has one for both: a client that does not close its side sees the end of a
# WebSocket no sooner.
_FAREWELL_SECONDS = 15
# What the system holds of an answer beyond what is under way. With the megabytes that it takes otherwise, a slow client
# takes longer for them than the farewell, and the engine sees none of it.
_UNSENT = 128 << 10
_TCP, _TCP_USER_TIMEOUT, _TCP_NOTSENT_LOWAT = 6, 18, 25
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def clients(own: HttpConnectionManager, *, headers_seconds: float, idle_seconds: float) -> HttpConnectionManager:
    """Returns the part of a listener that speaks HTTP of any version with clients, with the fields of `own` added.
    Clients send their headers within `headers_seconds`, and a connection without a request is kept for `idle_seconds`.
    """
    manager = HttpConnectionManager(
        # No client is one of our own: headers that steer the engine are removed from all requests.
        use_remote_address=TRUE,
        internal_address_config=HttpConnectionManager.InternalAddressConfig(cidr_ranges=[cidr("255.255.255.255/32")]),
        # Paths belong to the program.
        normalize_path=FALSE,
        merge_slashes=False,
        strip_trailing_host_dot=True,
        server_header_transformation=HttpConnectionManager.PASS_THROUGH,
        proxy_100_continue=True,
        max_request_headers_kb=number(_HEADERS_KIB),
        common_http_protocol_options=HttpProtocolOptions(
            idle_timeout=duration(idle_seconds), max_headers_count=number(_HEADER_LINES)
        ),
        http_protocol_options=Http1ProtocolOptions(
            enable_trailers=True,
            accept_http_10=True,
            # An offer, which a server may leave alone: clients ask for TLS in this way, and for HTTP/2.
            ignore_http_11_upgrade=[StringMatcher(safe_regex=regex(_all_but(_WEBSOCKET)))],
        ),
        http2_protocol_options=Http2ProtocolOptions(
            max_concurrent_streams=number(_STREAMS),
            initial_stream_window_size=number(_WINDOW),
            initial_connection_window_size=number(_WINDOW),
        ),
        # Against clients that send their headers drop by drop; a body may take its time.
        request_headers_timeout=duration(headers_seconds),
        delayed_close_timeout=duration(_FAREWELL_SECONDS),
        upgrade_configs=[HttpConnectionManager.UpgradeConfig(upgrade_type=_WEBSOCKET)],
    )
    manager.MergeFrom(own)
    return manager


def patience() -> list[SocketOption]:
    """Returns the options of a listener that end connections whose clients take nothing any more, and have the engine
    see how slow ones get on.
    """
    options = {_TCP_USER_TIMEOUT: _STALLED_SECONDS * 1000, _TCP_NOTSENT_LOWAT: _UNSENT}
    return [
        SocketOption(level=_TCP, name=name, int_value=value, state=SocketOption.STATE_LISTENING)
        for name, value in options.items()
    ]


def programs(*, idle_seconds: float, http2: Http2ProtocolOptions | None = None) -> dict[str, AnyMessage]:
    """Returns the extension of a cluster by which it speaks HTTP with programs: HTTP/2 with these options,
    HTTP/1.1 without. An unused connection is kept for `idle_seconds`.
    """
    common = HttpProtocolOptions(
        idle_timeout=duration(idle_seconds),
        max_headers_count=number(_HEADER_LINES),
        max_response_headers_kb=number(_HEADERS_KIB),
    )
    if http2 is not None:
        return http2_cluster(http2, common)
    options = http_protocol_options_pb2.HttpProtocolOptions(common_http_protocol_options=common)
    options.explicit_http_config.http_protocol_options.enable_trailers = True
    return {_HTTP_OPTIONS: pack(options)}


def http2_cluster(http2: Http2ProtocolOptions, common: HttpProtocolOptions | None = None) -> dict[str, AnyMessage]:
    """Returns the extension of a cluster by which it speaks HTTP/2."""
    options = http_protocol_options_pb2.HttpProtocolOptions(common_http_protocol_options=common)
    options.explicit_http_config.http2_protocol_options.CopyFrom(http2)
    return {_HTTP_OPTIONS: pack(options)}


def header(
    name: str, value: str, action: HeaderValueOption.HeaderAppendAction.ValueType = OVERWRITE
) -> HeaderValueOption:
    """Returns a header to set."""
    return HeaderValueOption(header=HeaderValue(key=name, value=value), append_action=action)


def forwarded(values: Mapping[str, str]) -> list[HeaderValueOption]:
    """Returns the headers of a route or virtual host that say to programs where a request comes from, whatever it says
    itself.
    """
    return [header(name, value) for name, value in values.items()]


def _all_but(word: str) -> str:
    """Returns the expression, without looking ahead, of all texts but a word in any case."""
    parts = [f"{re.escape(word)}.+"]
    for index, letter in enumerate(word):
        parts.append(re.escape(word[:index]))
        parts.append(f"{re.escape(word[:index])}[^{letter}{letter.upper()}].*")
    return f"(?i:{'|'.join(parts)})"
