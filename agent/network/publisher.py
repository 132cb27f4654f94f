"""Publishes and leases ports of kernels at this node's address, and remembers their numbers
through restarts of the agent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import time
from typing import TYPE_CHECKING

from retinue.agent.host.lanes import NETWORK, STATE
from retinue.agent.network.core.publications import LeasedPort, Publications, from_values, to_values
from retinue.agent.network.core.rules import Forward, LeasedForward
from retinue.agent.network.errors import NetworkError, PortUnreachableError
from retinue.agent.state import checked
from retinue.rpc.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from retinue.agent.network.egress import Egress
    from retinue.agent.network.namespaces import NetworkNamespace
    from retinue.agent.network.rules_guard import Guard

_log = logging.getLogger(__name__)

GRACE = 120.0
"""Seconds after its start in which the agent gives up no leased port: the manager that leased it asks again."""


class Publisher:
    """All published ports of one agent. A number is on the disk before it is used,
    and off the rules before it rests.
    """

    def __init__(
        self,
        path: Path,
        address: str,
        guard: Guard,
        egress: Egress,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        source: random.Random | None = None,
    ) -> None:
        """`path` is the file of numbers, `address` the node's that routers and gateways connect to.

        `clock` is in seconds since the epoch, `monotonic` in seconds; `source` chooses numbers.
        """
        self._path = path
        self._address = address
        self._guard = guard
        self._egress = egress
        self._clock = clock
        self._source = source or random.SystemRandom()
        self._monotonic = monotonic
        self._publications = Publications()
        # By leased port: the addresses that may connect, and until when.
        self._leases: dict[LeasedPort, dict[str, float]] = {}
        self._grace_until = monotonic() + GRACE
        self._lock = asyncio.Lock()

    async def open(self, attempt_ids: Collection[str]) -> None:
        """Takes over the published ports of these attempts, of which the links are there;
        before the rules are put in place.

        Raises NetworkError.
        """
        try:
            self._publications = from_values(checked.load(await STATE.run(self._path.read_bytes)))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as error:
            # Their attempts get other numbers.
            _log.error("the numbers of published ports are lost: %s", error)
            return
        self._leases = {}
        await self.withdraw(self.attempts() - set(attempt_ids))
        await self._apply()

    def location(self, attempt_id: str) -> tuple[str, int] | None:
        """Returns the address and the port where routers reach an attempt; None when it has no published port."""
        found = self._publications.by_attempt.get(attempt_id)
        return None if found is None else (self._address, found.number)

    def attempts(self) -> frozenset[str]:
        """Returns the attempts with a published or a leased port."""
        return frozenset((*self._publications.by_attempt, *(key[0] for key in self._publications.leased)))

    async def publish(self, attempt_id: str, port: int, *, closed: bool) -> None:
        """Publishes a port of an attempt that has its egress link; a `closed` one opens nothing to the outside.
        Idempotent.

        Raises NetworkError.
        """
        async with self._lock:
            await self._become(
                self._publications.given(attempt_id, port, self._clock(), self._source.choice, closed=closed)
            )
            await self._apply()

    async def refresh(self, attempt_id: str, namespace: NetworkNamespace) -> None:
        """Has the published and leased ports of an attempt lead to its egress link as it is. Raises NetworkError."""
        async with self._lock:
            if attempt_id not in self.attempts():
                return
            if ports := self._leased_ports(attempt_id):
                await self._egress.redirect(attempt_id, namespace, ports)
            await self._apply()

    async def lease(
        self, attempt_id: str, namespace: NetworkNamespace, port: int, source: str, seconds: float
    ) -> tuple[str, int]:
        """Lets an address, and no other that has not asked, reach a port of an attempt for so many seconds;
        returns where.

        A loopback address stands for this node. Raises PortUnreachableError, PortsExhaustedError, NetworkError.
        """
        source = self._source_address(source)
        key = (attempt_id, port)
        async with self._lock:
            until = self._monotonic() + seconds
            leases = self._leases.setdefault(key, {})
            if source not in leases:
                leases[source] = until
                try:
                    await self._begin(key, namespace)
                except BaseException:
                    del leases[source]
                    raise
            leases[source] = until
            return self._address, self._publications.leased[key]

    async def end_lease(self, attempt_id: str, port: int, source: str) -> None:
        """Has an address reach a port no longer. Idempotent. Raises PortUnreachableError, NetworkError."""
        if self._leases.get((attempt_id, port), {}).pop(self._source_address(source), None) is not None:
            await self._end_leases()

    async def expire(self) -> None:
        """Ends leases whose time has come. Raises NetworkError."""
        now = self._monotonic()
        ended = False
        for leases in self._leases.values():
            for source in [source for source, until in leases.items() if until <= now]:
                del leases[source]
                ended = True
        if ended or (now >= self._grace_until and any(not self._leases.get(key) for key in self._publications.leased)):
            await self._end_leases()

    def _source_address(self, source: str) -> str:
        parsed = ipaddress.ip_address(source)
        own = ipaddress.ip_address(self._address)
        used = own if parsed.is_loopback else parsed
        if 6 in (used.version, own.version):  # noqa: PLR2004  # the version of IP
            raise PortUnreachableError("ports of kernels are reached over IPv4 only")
        return str(used)

    async def _begin(self, key: LeasedPort, namespace: NetworkNamespace) -> None:
        attempt_id, port = key
        if not await self._egress.addresses([attempt_id]):
            raise PortUnreachableError(f"attempt {attempt_id} has no egress link")
        await self._become(self._publications.with_leased(attempt_id, port, self._clock(), self._source.choice))
        await self._egress.redirect(attempt_id, namespace, self._leased_ports(attempt_id))
        await self._apply()

    def _leased_ports(self, attempt_id: str) -> dict[int, int]:
        return {number: leased[1] for leased, number in self._publications.leased.items() if leased[0] == attempt_id}

    async def _end_leases(self) -> None:
        """Gives up numbers whose leases have ended."""
        async with self._lock:
            self._leases = {key: leases for key, leases in self._leases.items() if leases}
            if self._monotonic() >= self._grace_until:
                unused = self._publications.leased.keys() - self._leases.keys()
                await self._become(self._publications.without_leased(unused, self._clock()))
            await self._apply()

    async def withdraw(self, attempt_ids: Collection[str]) -> None:
        """Publishes nothing of these attempts any more. Idempotent. Raises NetworkError."""
        async with self._lock:
            after = self._publications.without(attempt_ids, self._clock())
            if after is not self._publications:
                await self._become(after)
                await self._apply()

    def _write(self, content: bytes) -> None:
        # Here it has a failpoint of its own; given to a thread as it is, it would have that of the pool.
        replace_file(self._path, content)

    async def _become(self, publications: Publications) -> None:
        if publications is self._publications:
            return
        content = checked.dump(to_values(publications))
        try:
            await STATE.run(self._write, content)
        except OSError as error:
            raise NetworkError(f"the numbers of published ports cannot be written: {error.strerror}") from error
        self._publications = publications

    async def _apply(self) -> None:
        by_attempt = self._publications.by_attempt
        attempts = self.attempts()
        addresses = await self._egress.addresses(attempts) if attempts else {}
        forwards = [
            Forward(item.number, addresses[key], item.port, item.closed)
            for key, item in by_attempt.items()
            if key in addresses
        ]
        leased = [
            LeasedForward(source, number, addresses[key[0]])
            for key, number in self._publications.leased.items()
            for source in self._leases.get(key, ())
            if key[0] in addresses
        ]
        await NETWORK.run(self._guard.publish, forwards, leased)
