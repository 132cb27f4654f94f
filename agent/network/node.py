"""Keeps an agent's networks on its node: session networks, kernels' egress links, and the rules for both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING

from retinue.agent.network.core.labels import agent_label
from retinue.agent.network.egress import Egress
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.links import SessionNetworks
from retinue.agent.network.rules_guard import Guard

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from retinue.agent.network.core.observed import Uplink

_log = logging.getLogger(__name__)


class NodeNetworks:
    """The parts, made from what they share. Rules are in place before anything else is made, and go after all else."""

    def __init__(
        self,
        agent_id: str,
        uplink: Uplink,
        *,
        name_servers: tuple[str, ...] = (),
        allowed: tuple[str, ...] = (),
        always: Iterable[str] = (),
    ) -> None:
        """`allowed` are networks kernels may reach although they are not public; `always` are addresses they never may."""
        self._always = frozenset({uplink.address, *always})
        self.guard = Guard(agent_label(agent_id), name_servers, allowed)
        self.links = SessionNetworks(agent_id, uplink.address, self.guard)
        self.egress = Egress(agent_id, uplink.mtu)

    async def open(self, attempt_ids: Collection[str]) -> None:
        """Puts the rules in place, and removes egress links of attempts other than these. Raises NetworkError."""
        carried = await self.links.carried()
        await asyncio.to_thread(self.guard.open, carried, self._always)
        await self.egress.open(attempt_ids)

    def protect(self, addresses: frozenset[str]) -> None:
        """Has kernels kept from these addresses from now on, and from those given at first."""
        self.guard.protect(addresses | self._always)

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
