"""Addresses that no kernel may reach by its egress link: those of the managers and the database, and of every node."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from typing import TYPE_CHECKING

from retinue.manager.store.postgres.connections import hosts_of
from retinue.rpc.cancellation import cancellable
from retinue.rpc.core.addresses import is_address
from retinue.rpc.lookups import ask_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LOOK_UP_SECONDS = 60.0
_FIRST_LOOK_UP_SECONDS = 1.0


def control_plane_hosts(listen: Iterable[str], advertise: Iterable[str], database_url: str) -> set[str]:
    """Names and addresses of a manager and of its database, from its settings;
    wildcards and loopback may be among them.
    """
    hosts = {address.rpartition(":")[0].strip("[]") for address in listen}
    hosts |= {host.rpartition(":")[0].strip("[]") if host.count(":") == 1 else host.strip("[]") for host in advertise}
    hosts.add(socket.gethostname())
    if database_url:
        hosts |= hosts_of(database_url)
    return {host for host in hosts if host and not host.startswith("/")}


class HostAddresses:
    """The addresses of hosts as they are known: names are looked up again and again, and nothing waits for that.

    The last answer stays while the name service hangs or has none.
    """

    def __init__(self, hosts: Iterable[str], look_up: Callable[[Iterable[str]], frozenset[str]] | None = None) -> None:
        """Addresses among the hosts are known at once, but for those that mean every node itself."""
        hosts = set(hosts)
        literal = {host for host in hosts if is_address(host)}
        self._names = hosts - literal
        self._look_up = look_up or resolve
        self._addresses = frozenset(filter(_is_protected, literal))
        self._known: dict[str, frozenset[str]] = {}
        self._asked: set[str] = set()
        self._answered = asyncio.Event()
        if not self._names:
            self._answered.set()

    def addresses(self) -> frozenset[str]:
        """Returns all that are known."""
        return self._addresses.union(*self._known.values())

    async def wait_answered(self, seconds: float) -> None:
        """Returns when every name was looked up once, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answered.wait()

    async def run(self) -> None:
        """Keeps the addresses of names current until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self._names:
                group.create_task(cancellable(self._follow, name), name=f"addresses of {name}")

    async def _follow(self, name: str) -> None:
        pause = 0.0
        while True:
            addresses = await ask_apart(lambda: self._look_up([name]))
            if addresses:
                self._known[name] = addresses
            self._asked.add(name)
            if self._asked == self._names:
                self._answered.set()
            pause = next_pause(pause, answered=name in self._known)
            await asyncio.sleep(pause)


def next_pause(before: float, *, answered: bool) -> float:
    """Returns the seconds until a name is looked up again, by those since the look-up before, 0 for the first.

    A name may have no address yet; or none ever, as `localhost`, whose own do not count.
    """
    return _LOOK_UP_SECONDS if answered else min(_LOOK_UP_SECONDS, max(_FIRST_LOOK_UP_SECONDS, 2 * before))


def resolve(hosts: Iterable[str]) -> frozenset[str]:
    """The addresses of hosts, less those that mean every node itself; what has none now is left out. Blocks."""
    return frozenset(filter(_is_protected, resolve_all(hosts)))


def resolve_all(hosts: Iterable[str]) -> frozenset[str]:
    """Returns all addresses of hosts; what has none now is left out. Blocks."""
    found: set[str] = set()
    for host in hosts:
        with contextlib.suppress(OSError):
            found |= {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    return frozenset(found)


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
