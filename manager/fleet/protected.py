"""Addresses that no kernel may reach by its way out: those of the managers and the database, and of every node."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable

from sqlalchemy.engine import make_url


def control_plane_hosts(listen: Iterable[str], advertise: Iterable[str], database_url: str) -> set[str]:
    """Names and addresses of a manager and of its database, from its settings; wildcards and loopback may be among them."""
    hosts = {address.rpartition(":")[0].strip("[]") for address in listen}
    hosts |= {host.rpartition(":")[0].strip("[]") if host.count(":") == 1 else host.strip("[]") for host in advertise}
    hosts.add(socket.gethostname())
    if database_url:
        url = make_url(database_url)
        named = url.query.get("host", ())
        hosts |= {url.host or "", *((named,) if isinstance(named, str) else named)}
    return {host for host in hosts if host and not host.startswith("/")}


def resolve(hosts: Iterable[str]) -> frozenset[str]:
    """The addresses of hosts, less those that mean every node itself; what has none now is left out. Blocks."""
    found: set[str] = set()
    for host in hosts:
        with contextlib.suppress(OSError):
            found |= {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    return frozenset(filter(_is_protected, found))


def node_addresses(addresses: Iterable[str]) -> frozenset[str]:
    """The addresses among where nodes are dialled, `host:port`, and where they take VXLAN; names are left out."""
    hosts = {address.rpartition(":")[0].strip("[]") if _has_port(address) else address for address in addresses}
    return frozenset(filter(_is_protected, hosts))


def _has_port(address: str) -> bool:
    return address.startswith("[") or address.count(":") == 1


def _is_protected(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_unspecified or parsed.is_link_local)
