"""The addresses of endpoints' pickers, which anyone may name who has an endpoint: looked up here, and only those that
the router's policy permits become known to the engine, which looks nothing up itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.rpc.core.addresses import AddressPolicy, is_address
from retinue.rpc.lookups import look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Located:
    """Where a picker is: addresses that may be dialled; with none of them, why, once that is known."""

    addresses: tuple[str, ...] = ()
    refusal: str = ""


NOWHERE = Located()


class PickerAddresses:
    """Follows the names of pickers; belongs on one event loop."""

    def __init__(self, policy: AddressPolicy, changed: Callable[[], None]) -> None:
        """`changed` is called whenever a name has other addresses than before."""
        self._policy = policy
        self._changed = changed
        self._located: dict[str, Located] = {}
        self._following: dict[str, asyncio.Task[None]] = {}

    def of(self, host: str) -> Located:
        """Returns where a host is, which has to be among those that are followed; NOWHERE before it was looked up."""
        return self._located.get(host, NOWHERE)

    def follow(self, hosts: Iterable[str]) -> None:
        """Follows these hosts and no others from now on."""
        wanted = set(hosts)
        for gone in self._following.keys() - wanted:
            self._following.pop(gone).cancel()
        for gone in self._located.keys() - wanted:
            del self._located[gone]
        for host in wanted - self._located.keys() - self._following.keys():
            if is_address(host):
                self._located[host] = self._permitted(host, [host])
            else:
                self._following[host] = asyncio.create_task(self._follow(host), name=f"addresses of picker {host}")

    def close(self) -> None:
        """Follows nothing any more."""
        self.follow(())

    async def _follow(self, host: str) -> None:
        while True:
            before = self.of(host)
            try:
                found = self._permitted(host, sorted({address for _, _, address, _ in await look_up(host)}))
            except OSError as error:
                # What a name meant last counts while the name service does not answer.
                found = before if before.addresses else Located((), f"its picker {host} has no address: {error}")
            if found != before:
                self._located[host] = found
                self._changed()
            await asyncio.sleep(_PAUSE_SECONDS)

    def _permitted(self, host: str, addresses: Iterable[str]) -> Located:
        every = tuple(addresses)
        permitted = tuple(address for address in every if self._policy.permits(address))
        if permitted or not every:
            return Located(permitted)
        place = "" if every == (host,) else f" is at {every[0]}, which"
        return Located((), f"its picker {host}{place} is no address that this router connects to (--picker-allow)")
