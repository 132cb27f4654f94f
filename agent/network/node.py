"""Keeps an agent's networks on its node: session networks, kernels' egress links, the rules for both,
and the name servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.network.core.labels import agent_label
from retinue.agent.network.egress import Egress
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.links import SessionNetworks
from retinue.agent.network.publisher import Publisher
from retinue.agent.network.rules_guard import Guard

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from retinue.agent.network.core.observed import Uplink

_log = logging.getLogger(__name__)

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


class NodeNetworks:
    """The parts, made from what they share. Rules are in place before anything else is made, and go after all else."""

    def __init__(
        self,
        agent_id: str,
        uplink: Uplink,
        state_dir: Path,
        *,
        name_servers: tuple[str, ...] = (),
        allowed: tuple[str, ...] = (),
        always: Iterable[str] = (),
    ) -> None:
        """`allowed` are networks kernels may reach although they are not public;
        `always` are addresses they never may.
        """
        self.address = uplink.address
        self._always = frozenset({uplink.address, *always})
        self.guard = Guard(agent_label(agent_id), name_servers, allowed)
        self.links = SessionNetworks(agent_id, uplink.address, self.guard)
        self.egress = Egress(agent_id, uplink.mtu)
        self.publisher = Publisher(state_dir / "published", uplink.address, self.guard, self.egress)

    async def open(self, attempt_ids: Collection[str]) -> None:
        """Puts the rules in place, and removes egress links and published ports of attempts other than these.
        Raises NetworkError.
        """
        carried = await self.links.carried()
        await self.publisher.open(attempt_ids)
        await asyncio.to_thread(self.guard.open, carried, self._always)
        await self.egress.open(attempt_ids)

    def protect(self, addresses: frozenset[str]) -> None:
        """Has kernels kept from these addresses from now on, and from those given at first."""
        self.guard.protect(addresses | self._always)

    def route(self, routers: frozenset[str]) -> None:
        """Lets these routers reach published ports. One on this node itself comes with this node's address."""
        own = {address for address in routers if ipaddress.ip_address(address).is_loopback}
        self.guard.route(routers | {self.address} if own else routers)

    async def close(self) -> None:
        """Releases everything; the rules stay as long as a network or an egress link does."""
        try:
            used = bool(await self.links.observed() or await self.egress.observed())
            await asyncio.to_thread(lambda: self.guard.close(remove=not used))
        except NetworkError:
            _log.exception("the rules of this agent cannot be removed")


def addresses_of(host: str) -> set[str]:
    """Returns the addresses of a host, by name or address; empty when it has none now. Blocks."""
    with contextlib.suppress(OSError):
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)}
    return set()


def parse_resolver(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the IPv4 name servers in a resolv.conf that others than the node itself can reach,
    and the domains to search.
    """
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
    return tuple(dict.fromkeys(servers))[:MAX_NAME_SERVERS], search


def resolver_text(servers: Iterable[str], search: Iterable[str] = ()) -> str:
    """Returns the resolv.conf of kernels that may ask these servers."""
    lines = [f"nameserver {server}\n" for server in servers]
    if not lines:
        return "# This node has no name server that kernels can reach.\n"
    domains = " ".join(search)
    return "".join(lines) + (f"search {domains}\n" if domains else "") + f"{RESOLVER_OPTIONS}\n"


def read_name_servers() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the name servers of this node that kernels can reach, and its search domains; blocks."""
    for path in RESOLVER_FILES:
        with contextlib.suppress(OSError):
            servers, search = parse_resolver(path.read_text())
            if servers:
                return servers, search
    return (), ()
