"""Leases ports of kernels from their agents, so that the engine reaches them without the manager,
and keeps them leased while they are in use.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from google.protobuf.duration_pb2 import Duration
from prometheus_client import Gauge

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.agent_rpc.relay import AgentRefusedError, AgentUnavailableError, AttemptLocation, Forwarder

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.manager.gateway.access_cache import Access, AccessCache

_log = logging.getLogger(__name__)

LEASE_SECONDS, RENEW_SECONDS = 60, 15.0
_POLL_SECONDS = 1.0
# Before a lease that seems to be lost is asked for again.
_AGAIN_SECONDS = 2.0
# Of a question to an agent, and of a connection to its node.
_ASK_SECONDS, _CONNECT_SECONDS = 3.0, 1.0
# What is believed of a node that was not reached.
_UNREACHABLE_SECONDS = 60.0
_BROWSERS = Gauge(
    "retinue_gateway_browsers",
    "Browsers that were let in to a port, by the way of their bytes: direct or relay.",
    ["way"],
)

Leased: TypeAlias = tuple[str, int]
"""An address and a port on a node."""


@dataclass(slots=True)
class _Port:
    """A port of an attempt: where it is reached, None when the relay has to do, when that was asked,
    and when it is asked again.
    """

    leased: Leased | None = None
    asked: float = 0.0
    due: float = 0.0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class LeasedPorts:
    """All ports that browsers have access to; belongs on one event loop."""

    def __init__(
        self,
        forwarder: Forwarder,
        cache: AccessCache,
        monotonic: Callable[[], float],
        moved: Callable[[bytes, Leased | None], None],
    ) -> None:
        """`monotonic` is in seconds; `moved` is called with an access and the place where
        its port is reached from now on.
        """
        self._forwarder = forwarder.without_activity
        self._cache = cache
        self._monotonic = monotonic
        self._moved = moved
        self._ports: dict[tuple[AttemptLocation, int], _Port] = {}
        self._used: dict[bytes, Leased | None] = {}
        self._unreachable: dict[tuple[str, str], float] = {}

    async def use(self, access: Access) -> Leased | None:
        """Returns where the port of an access is reached, and keeps it leased until `drop`.
        Takes a few seconds at most.
        """
        self._used.setdefault(access.hash, None)
        leased = await self._find(access)
        if access.hash in self._used:
            self._used[access.hash] = leased
        return leased

    def relayed(self, key: bytes) -> None:
        """A connection of this access came to the relay: if its port is leased,
        the agent may have started again and know of no lease.
        """
        access = self._cache.now(key)
        port = (
            None
            if access is None or access.location is None
            else self._ports.get((access.location, access.target.port))
        )
        if port is not None and port.leased is not None:
            port.due = min(port.due, port.asked + _AGAIN_SECONDS)

    def drop(self, key: bytes) -> None:
        """The port is not used by this access any more; the lease of an unused one ends by itself."""
        self._used.pop(key, None)

    async def run(self) -> None:
        """Keeps leases, and follows kernels that start again elsewhere, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            await asyncio.gather(*(self._follow(key) for key in list(self._used)))
            for key in [key for key in self._used if self._cache.now(key) is None]:
                # Lost while its port was being leased.
                del self._used[key]
            accesses = [access for key in self._used if (access := self._cache.now(key)) is not None]
            used = {(access.location, access.target.port) for access in accesses}
            for unused in [place for place in self._ports if place not in used]:
                del self._ports[unused]
            direct = sum(leased is not None for leased in self._used.values())
            _BROWSERS.labels("direct").set(direct)
            _BROWSERS.labels("relay").set(len(self._used) - direct)

    async def _follow(self, key: bytes) -> None:
        access = self._cache.now(key)
        if access is None:
            return
        leased = await self._find(access)
        if key in self._used and self._used[key] != leased:
            self._used[key] = leased
            self._moved(key, leased)

    async def _find(self, access: Access) -> Leased | None:
        if access.location is None:
            return None
        port = self._ports.setdefault((access.location, access.target.port), _Port())
        async with port.asking:
            if port.due <= self._monotonic():
                former, port.leased = port.leased, await self._lease(access.location, access.target.port)
                port.asked = self._monotonic()
                port.due = port.asked + RENEW_SECONDS
                if port.leased != former:
                    how = "through the manager" if port.leased is None else f"at {port.leased[0]}:{port.leased[1]}"
                    _log.info("browsers reach port %d of %s %s", access.target.port, access.location.attempt_id, how)
            return port.leased

    async def _lease(self, location: AttemptLocation, port: int) -> Leased | None:
        """Returns where a port is reached; None when it is not. Raises nothing."""
        node = (location.agent_id, location.address)
        if self._unreachable.get(node, 0.0) > self._monotonic():
            return None
        lease = Duration(seconds=LEASE_SECONDS)
        request = pb.LeasePortRequest(attempt_id=location.attempt_id, port=port, lease=lease)
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                answer = await self._forwarder.call(location, lambda stub: stub.LeasePort, request)
        except (AgentUnavailableError, AgentRefusedError, TimeoutError) as error:
            _log.debug("port %d of %s is not leased: %s", port, location.attempt_id, error)
            return None
        leased = str(answer.address.address), int(answer.address.port)
        # A program may not listen yet.
        if await listens(*leased) is not None:
            self._unreachable.pop(node, None)
            return leased
        _log.info("%s:%d of agent %s cannot be reached from here", *leased, location.agent_id)
        self._unreachable[node] = self._monotonic() + _UNREACHABLE_SECONDS
        return None


async def listens(address: str, port: int) -> bool | None:
    """Returns True when connections are taken there, False when they are refused, and None when it is not reached."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError, ValueError):
        return None
    writer.transport.abort()
    return True
