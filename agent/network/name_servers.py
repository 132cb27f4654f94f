"""Chooses the name servers of kernels with egress, and writes their resolv.conf. Pure but for `read`."""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""Files that list the node's name servers. The first may name only a relay on the node; the second then has the relay's servers."""
MAX_SERVERS = 3
"""More are not read by the resolvers of C libraries."""
OPTIONS = "options no-aaaa timeout:2"
"""Egress is IPv4, so no other addresses are needed. Names of the session come from /etc/hosts, which has IPv4 addresses alone: who asks
for IPv6 first, as `getent hosts` does, asks name servers, too, and must not wait long for servers that do not answer. Two tries are made.
"""


def parse(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the IPv4 name servers in a resolv.conf that others than the node itself can reach, and the domains to search."""
    servers: list[str] = []
    search: tuple[str, ...] = ()
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2:  # noqa: PLR2004 - a word and its value
            continue
        if words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                address = ipaddress.IPv4Address(words[1])
                if not address.is_loopback and not address.is_unspecified:
                    servers.append(str(address))
        elif words[0] in {"search", "domain"}:
            search = tuple(words[1:])
    return tuple(dict.fromkeys(servers))[:MAX_SERVERS], search


def text(servers: Iterable[str], search: Iterable[str] = ()) -> str:
    """Returns the resolv.conf of kernels that may ask these servers."""
    lines = [f"nameserver {server}\n" for server in servers]
    if not lines:
        return "# This node has no name server that kernels can reach.\n"
    domains = " ".join(search)
    return "".join(lines) + (f"search {domains}\n" if domains else "") + f"{OPTIONS}\n"


def read() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the name servers of this node that kernels can reach, and its search domains; blocks."""
    for path in FILES:
        with contextlib.suppress(OSError):
            servers, search = parse(path.read_text())
            if servers:
                return servers, search
    return (), ()
