"""Keeps an agent's networks on its node: session networks, kernels' egress links, the rules for both,
and the name servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING

from retinue.agent.conditions import Conditions
from retinue.agent.host.lanes import NETWORK, in_thread
from retinue.agent.network.core.labels import agent_label
from retinue.agent.network.egress import Egress
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.links import SessionNetworks
from retinue.agent.network.name_servers import NameServers
from retinue.agent.network.paths import Paths
from retinue.agent.network.publisher import Publisher
from retinue.agent.network.rules_guard import LOOK_INTERVAL, Guard
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from retinue.agent.network.core.observed import Uplink

_log = logging.getLogger(__name__)


class NodeNetworks:
    """The parts, made from what they share. Rules are in place before anything else is made, and go after all else."""

    def __init__(
        self,
        agent_id: str,
        uplink: Uplink,
        state_dir: Path,
        *,
        name_servers: NameServers | None = None,
        allowed: tuple[str, ...] = (),
        always: Iterable[str] = (),
        conditions: Conditions | None = None,
    ) -> None:
        """`allowed` are networks kernels may reach although they are not public;
        `always` are addresses they never may. Broken paths are among the node's `conditions`.
        """
        self.address = uplink.address
        self._always = frozenset({uplink.address, *always})
        self._fleet = frozenset[str]()
        self._name_servers = name_servers or NameServers()
        self.guard = Guard(agent_label(agent_id), self._name_servers.servers, allowed)
        self.links = SessionNetworks(agent_id, uplink.address, self.guard)
        self.paths = Paths(self.links.namespace, conditions or Conditions())
        self.egress = Egress(agent_id, uplink.mtu)
        self.publisher = Publisher(state_dir / "published", uplink.address, self.guard, self.egress)

    async def open(self, attempt_ids: Collection[str]) -> None:
        """Puts the rules in place, and removes egress links and published ports of attempts other than these.
        Raises NetworkError.
        """
        carried = await self.links.carried()
        await self.publisher.open(attempt_ids)
        await in_thread(self.guard.open, carried, self._always)
        await self.egress.open(attempt_ids)

    def protect(self, addresses: frozenset[str]) -> None:
        """Has kernels kept from these addresses from now on, and from those that they never may reach."""
        self._fleet = addresses
        self.guard.protect(addresses | self._always)

    def keep_from(self, always: Iterable[str]) -> None:
        """Takes addresses that kernels never may reach in place of those given before; on the event loop."""
        self._always = frozenset({self.address, *always})
        self.protect(self._fleet)

    def route(self, routers: frozenset[str]) -> None:
        """Lets these routers reach published ports. One on this node itself comes with this node's address."""
        own = {address for address in routers if ipaddress.ip_address(address).is_loopback}
        self.guard.route(routers | {self.address} if own else routers)

    async def follow(self) -> None:
        """Follows the node's name servers until cancelled: kernels that are created later ask those it has then."""
        letting = Retrying("kernels cannot be let to the node's new name servers", _log)
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            try:
                await NETWORK.run(self.look_for_name_servers)
            except NetworkError as error:
                letting.fail(error)
            else:
                letting.succeed()

    def look_for_name_servers(self) -> None:
        """Looks for other name servers. Blocks. Raises NetworkError."""
        if (found := self._name_servers.changed()) is not None:
            servers, search = found
            # A kernel that knows them is to reach them.
            self.guard.answer(servers)
            self._name_servers.take(servers, search)
            _log.info("kernels ask these name servers from now on: %s", ", ".join(servers))

    async def close(self) -> None:
        """Releases everything; the rules stay as long as a network or an egress link does."""
        self.paths.close()
        try:
            used = bool(await self.links.observed() or await self.egress.observed())
        except NetworkError as error:
            _log.warning("the rules of this agent stay, as it is not known what uses them: %s", error)
            used = True
        try:
            await in_thread(lambda: self.guard.close(remove=not used))
        except NetworkError as error:
            _log.warning("the rules of this agent cannot be removed: %s", error)


class ManagerAddresses:
    """The addresses of managers, whose names may mean others as time goes by."""

    def __init__(self, hosts: Iterable[str], resolve: Callable[[str], Iterable[str]] | None = None) -> None:
        """`hosts` are names or addresses; `resolve` returns the addresses of one, none when it has none now."""
        self._resolve = resolve or addresses_of
        self._known: dict[str, frozenset[str]] = dict.fromkeys(hosts, frozenset())

    @property
    def known(self) -> frozenset[str]:
        """Returns what the last look found: of a host without an address, what it had last."""
        return frozenset().union(*self._known.values())

    def look(self) -> bool:
        """Looks the hosts up; returns whether their addresses are others now. Blocks."""
        before = self.known
        self._known = {host: frozenset(self._resolve(host)) or last for host, last in self._known.items()}
        return self.known != before


def addresses_of(host: str) -> set[str]:
    """Returns the addresses of a host, by name or address; empty when it has none now. Blocks."""
    with contextlib.suppress(OSError):
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)}
    return set()
