"""Opens the connection to a manager: TLS always, the token as metadata of each call, keepalive, and which calls are
retried.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path

import grpc
import grpc.aio

from retinue.client.errors import UsageError
from retinue.client.transport.lazy_channel import LazyChannel
from retinue.client.transport.proxy import proxy_for
from retinue.rpc.core.addresses import is_address

DEFAULT_PORT = 7440
SERVER_NAME = "manager.retinue"
"""A name that every manager's certificate carries; certificates need not name the address that was dialled."""

# A name, or an address with what IPv6 has in it; anything else would only fail later, and less clearly.
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
# A connection without calls is closed here, after up to twice this time, and made again by the next call. The manager
# closes it as well, later, and gRPC prints a line about that to standard error.
IDLE_SECONDS = 25


def service_config() -> str:
    """Returns the gRPC service config in JSON, which clients in other languages take as a file.

    UNAVAILABLE is tried again for reads, for calls that say so, and for creating calls, which carry a request_id. A
    repetition of any other could do its work twice, or answer that the work is done already as if it were an error.
    """
    # `importlib.resources` would load what reads archives, for each command.
    return Path(__file__).parent.with_name("service_config.json").read_text()


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Returns host and port of `HOST`, `HOST:PORT`, `[V6]:PORT` or a bare IPv6 address. Raises UsageError."""
    text = endpoint.strip().removeprefix("https://").rstrip("/")
    host, port = text, str(DEFAULT_PORT)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif text.count(":") == 1:
        host, port = text.split(":")
    if not _HOST.fullmatch(host) or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:  # ports
        raise UsageError(f"{endpoint!r} is not an endpoint: write HOST:PORT")
    return host, int(port)


def parse_endpoints(endpoints: str) -> list[tuple[str, int]]:
    """Hosts and ports of `ENDPOINT[,ENDPOINT...]`, each once and in order. Raises UsageError."""
    return list(dict.fromkeys(parse_endpoint(endpoint) for endpoint in endpoints.split(",")))


def open_channel(endpoint: str, token: str | None, ca: bytes | None, timeout: float | None = None) -> LazyChannel:
    """Returns a channel to the manager at `endpoint`, or to the first of several that can be reached,
    separated by commas; the first call opens it. To one manager it goes by the proxy that the environment names for it.

    `ca` is the PEM of the CA that signed the managers' certificates; None trusts the machine's usual ones. Names among
    several are looked up here, and block. `timeout` is the seconds that a connection may take to be made, and what
    `LazyChannel.timeout` says. Raises UsageError.
    """
    endpoints = parse_endpoints(endpoint)
    target, name = _target(endpoints, own_ca=ca is not None)
    options: list[tuple[str, str | int]] = [
        ("grpc.client_idle_timeout_ms", 1000 * IDLE_SECONDS),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.service_config", service_config()),
    ]
    # A proxy is told one address; gRPC would take one to this machine, too.
    proxy = proxy_for(endpoints[0][0], os.environ) if len(endpoints) == 1 else None
    options.append(("grpc.enable_http_proxy", 0) if proxy is None else ("grpc.http_proxy", proxy.url))
    if timeout is not None:
        # It bounds tries to connect, too, which take up to 20 s otherwise.
        options.append(("grpc.min_reconnect_backoff_ms", int(max(200, min(20_000, 1000 * timeout)))))
    if name:
        options.append(("grpc.ssl_target_name_override", name))
    if token and (not token.isascii() or not token.isprintable() or " " in token):
        raise UsageError("the token has characters that no token can have")
    credentials = grpc.ssl_channel_credentials(root_certificates=ca)
    # gRPC's threads would ask Python for call credentials, and a channel that is closed meanwhile waits for ever.
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    return LazyChannel(
        lambda: grpc.aio.secure_channel(target, credentials, options=options), metadata, timeout, endpoint
    )


def _target(endpoints: list[tuple[str, int]], *, own_ca: bool) -> tuple[str, str]:
    """Returns a target of gRPC, and the name that the certificate there must carry; empty for the one in the target."""
    if len(endpoints) == 1 and not is_address(endpoints[0][0]):
        host, port = endpoints[0]
        return f"dns:///{host}:{port}", ""
    # One target has one name. Those of the managers' own CA all carry this one;
    # others have to agree on the first that is given.
    names = [host for host, _ in endpoints if not is_address(host)]
    name = SERVER_NAME if own_ca or not names else names[0]
    found = [(address, port) for host, port in endpoints for address in _addresses(host)]
    if not found:
        raise UsageError(f"none of {', '.join(names)} is known (no such host): check the endpoint")
    if any(isinstance(address, ipaddress.IPv6Address) for address, _ in found):
        return "ipv6:" + ",".join(f"[{_as_v6(address)}]:{port}" for address, port in found), name
    return "ipv4:" + ",".join(f"{address}:{port}" for address, port in found), name


def _addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    if is_address(host):
        return [ipaddress.ip_address(host)]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        # The others may have one.
        return []
    return list(dict.fromkeys(ipaddress.ip_address(str(entry[4][0])) for entry in found))


def _as_v6(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Returns an address as targets of both kinds take it."""
    return str(address) if isinstance(address, ipaddress.IPv6Address) else f"::ffff:{address}"
