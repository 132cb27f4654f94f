"""The name servers of a node that its kernels may ask: those it was given, or those of its resolv.conf as it is now."""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

RESOLVER_FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""Files that list the node's name servers. The first may name only a relay on the node;
the second then has the relay's servers.
"""
MAX_NAME_SERVERS = 3
"""More are not read by the resolvers of C libraries."""
RESOLVER_OPTIONS = "options no-aaaa timeout:2"
"""Egress is IPv4, so no other addresses are needed. Names of the session come from /etc/hosts, which has IPv4 addresses
alone: who asks for IPv6 first, as `getent hosts` does, asks name servers, too,
and must not wait long for servers that do not answer. Two tries are made.
"""


class NameServers:
    """The name servers that kernels are given and let through to, both at once."""

    def __init__(self, given: tuple[str, ...] = (), files: Iterable[Path] = RESOLVER_FILES) -> None:
        """`given` are in place of the node's own, which are in the first of `files` that has any."""
        self._given = given
        self._files = tuple(files)
        self._servers: tuple[str, ...] = given
        self._search: tuple[str, ...] = ()

    @property
    def servers(self) -> tuple[str, ...]:
        """Returns the addresses."""
        return self._servers

    def resolver(self) -> str:
        """Returns the resolv.conf of kernels."""
        return resolver_text(self._servers, self._search)

    def changed(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Reads the node's files; returns servers and search domains when they are others now. Blocks.

        A file without any is one that is being written, or of a network that is down: what was known stays.
        """
        if self._given:
            return None
        found = read_name_servers(self._files)
        return None if not found[0] or found == (self._servers, self._search) else found

    def take(self, servers: tuple[str, ...], search: tuple[str, ...]) -> None:
        """Gives these to kernels from now on."""
        self._servers, self._search = servers, search


def parse_resolver(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the IPv4 name servers in a resolv.conf that others than the node itself can reach,
    and the domains to search.
    """
    servers: list[str] = []
    search: tuple[str, ...] = ()
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2:  # noqa: PLR2004  # a word and its value
            continue
        if words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                address = ipaddress.IPv4Address(words[1])
                if not address.is_loopback and not address.is_unspecified:
                    servers.append(str(address))
        elif words[0] in {"search", "domain"}:
            search = tuple(words[1:])
    return tuple(dict.fromkeys(servers))[:MAX_NAME_SERVERS], search


def resolver_text(servers: Iterable[str], search: Iterable[str] = ()) -> str:
    """Returns the resolv.conf of kernels that may ask these servers."""
    lines = [f"nameserver {server}\n" for server in servers]
    if not lines:
        return "# This node has no name server that kernels can reach.\n"
    domains = " ".join(search)
    return "".join(lines) + (f"search {domains}\n" if domains else "") + f"{RESOLVER_OPTIONS}\n"


def read_name_servers(files: Iterable[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the name servers of this node that kernels can reach, and its search domains; blocks."""
    for path in files:
        with contextlib.suppress(OSError):
            servers, search = parse_resolver(path.read_text())
            if servers:
                return servers, search
    return (), ()
