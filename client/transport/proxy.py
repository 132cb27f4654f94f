"""The web proxy on the way to a manager: the one that the environment names for it, as for other programs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from retinue.rpc.core.addresses import is_address

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLES = ("grpc_proxy", "https_proxy", "HTTPS_PROXY")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy for CONNECT, and the variable that names it."""

    variable: str
    url: str
    host: str
    port: int

    def is_at(self, address: str) -> bool:
        """Returns whether the proxy listens at `HOST:PORT`; of one with a name, only the port is compared."""
        host, _, port = address.rpartition(":")
        return port == str(self.port) and (not is_address(self.host) or host.strip("[]") == self.host)


def configured(environ: Mapping[str, str]) -> Proxy | None:
    """Returns the proxy that the environment names; None without one that takes CONNECT over HTTP."""
    variable = next((name for name in _VARIABLES if environ.get(name)), "")
    url = environ.get(variable, "")
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        return None
    return (
        Proxy(variable, url, parts.hostname, port) if variable and parts.scheme == "http" and parts.hostname else None
    )


def proxy_for(host: str, environ: Mapping[str, str]) -> Proxy | None:
    """Returns the proxy on the way to a host; None for this machine, and for what is excepted from proxies."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or (is_address(name) and _address(name).is_loopback):
        return None
    excepted = next((environ[variable] for variable in _EXCEPTIONS if environ.get(variable)), "")
    if any(_excepts(entry.strip().lower(), name) for entry in excepted.split(",")):
        return None
    return configured(environ)


def _excepts(entry: str, host: str) -> bool:
    entry = entry.removeprefix("*.").removeprefix(".")
    if not entry:
        return False
    if entry in {"*", host} or host.endswith(f".{entry}"):
        return True
    try:
        return _address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host)
