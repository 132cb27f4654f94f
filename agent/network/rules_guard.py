"""Keeps the agent's table of the packet filter as it should be: as networks come and go, and whatever others do to it.

The table outlives the agent's process, because kernels do. Tables of other names are never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.host.lanes import NETWORK
from retinue.agent.network import netlink as route_netlink
from retinue.agent.network import nftables
from retinue.agent.network.core.egress_plan import link_prefix
from retinue.agent.network.core.rules import (
    Forward,
    Guarded,
    LeasedForward,
    changes,
    obstacles,
    parse_addresses,
    settled,
    whole_table,
)
from retinue.agent.network.core.topology import VXLAN_PORT
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.observation import observe_connected
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_log = logging.getLogger(__name__)

LOOK_INTERVAL = 2.0
"""Seconds between two looks at whether the table is still there, and as it was left."""
CLOSE_LOOKS = 15
"""One look in so many reads the elements of sets as well, which may be thousands."""
TRACKED = Path("/proc/sys/net/netfilter/nf_conntrack_max")
"""How many connections the node keeps track of; not there before Linux tracks any."""
USUALLY_TRACKED = 262_144
KERNELS_TO_FILL = 16
"""So many kernels would have to work together to take all of them."""
OPENING_SECONDS = 32
"""A kernel may open as many connections again as it may have each so many seconds: those that ended are tracked for
two minutes.
"""


@dataclass(frozen=True, slots=True)
class Counters:
    """Traffic of a network between nodes: its VNI, 0 for none, the other nodes, and the port of VXLAN."""

    vni: int
    peers: frozenset[str]
    port: int = VXLAN_PORT


class Guard:
    """The table of one agent. Until `open`, and after `close`, nothing is touched and everything is only noted."""

    def __init__(self, label: str, name_servers: tuple[str, ...] = (), allowed: tuple[str, ...] = ()) -> None:
        """`label` is the agent's part of names; `allowed` are networks kernels may reach
        although they are not public.
        """
        self._table = f"retinue-{label}"
        tracked = _tracked()
        self._settings = Guarded(
            self._table,
            link_prefix(label),
            allowed=allowed,
            connections=max(1, tracked // KERNELS_TO_FILL),
            openings=max(1, tracked // KERNELS_TO_FILL // OPENING_SECONDS),
        )
        self._name_servers = name_servers
        self._networks: dict[str, Counters] = {}
        self._fleet: frozenset[str] = frozenset()
        self._routers: frozenset[str] = frozenset()
        self._published: frozenset[Forward] = frozenset()
        self._leased: frozenset[LeasedForward] = frozenset()
        self._applied: Guarded | None = None
        self._left_as = ""
        # What was applied when the elements of sets were read last, and those.
        self._elements: tuple[Guarded, Sequence[str]] | None = None
        self._lock = threading.Lock()
        self._changed = asyncio.Event()

    def open(self, networks: Mapping[str, Counters], fleet: Iterable[str] = ()) -> None:
        """Puts the table in place; `networks` are those that exist, by session. Blocks. Raises NetworkError.

        What a former process of the agent knew of the fleet and of routers counts until `protect` and `route` say more.
        """
        with self._lock:
            self._networks |= networks
            self._fleet = self._known("fleet") | frozenset(fleet)
            self._routers = self._known("routers")
            self._apply()
            for chain in obstacles(nftables.run("list chains"), self._table):
                _log.warning("chain %s drops what is forwarded: kernels reach the outside only if it lets them", chain)

    def admit(self, session_id: str, carried: Counters) -> None:
        """Takes VXLAN of a session's network from its nodes only. Blocks. Raises NetworkError."""
        with self._lock:
            self._networks[session_id] = carried
            self._update()

    def dismiss(self, session_id: str) -> None:
        """Forgets a session's network. Blocks. Raises NetworkError."""
        with self._lock:
            if self._networks.pop(session_id, None) is not None:
                self._update()

    def protect(self, fleet: Iterable[str]) -> None:
        """Has kernels kept from these addresses, and no longer from those that were given before; on the event loop."""
        self._fleet = frozenset(fleet)
        self._changed.set()

    def route(self, routers: Iterable[str]) -> None:
        """Lets these addresses, and no others any more, reach published ports; on the event loop."""
        self._routers = frozenset(routers)
        self._changed.set()

    def publish(self, published: Iterable[Forward], leased: Iterable[LeasedForward]) -> None:
        """Has these ports published and leased, and no others. Blocks. Raises NetworkError."""
        with self._lock:
            self._published = frozenset(published)
            self._leased = frozenset(leased)
            self._update()

    def answer(self, name_servers: tuple[str, ...]) -> None:
        """Lets kernels ask these name servers, and no others. Blocks. Raises NetworkError."""
        with self._lock:
            self._name_servers = name_servers
            self._update()

    def look(self) -> bool:
        """Restores the table if it was changed; returns whether it was unchanged. Blocks. Raises NetworkError."""
        with self._lock:
            if self._applied is None:
                return True
            with contextlib.suppress(NetworkError):
                if self._listing() == self._left_as and _connected() == self._applied.connected:
                    self._update()
                    return True
            self._apply()
            return False

    def look_closely(self) -> bool:
        """Restores the table if elements of its sets were changed; returns whether they were not. Blocks.
        Raises NetworkError.

        What the table should have differs from what it lists only in order and form: so two lists are compared, and
        where there is none to compare with, the table is put in place again.
        """
        with self._lock:
            if self._applied is None:
                return True
            with contextlib.suppress(NetworkError):
                if self._elements is not None and self._elements == (self._applied, self._words()):
                    return True
            known = self._elements is not None and self._elements[0] == self._applied
            self._apply()
            self._elements = self._applied, self._words()
            return not known

    async def watch(self) -> None:
        """Checks periodically, and on changes of the fleet, until cancelled."""
        looks = 0
        looking = Retrying(f"table {self._table} cannot be looked after", _log)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL):
                    await self._changed.wait()
            self._changed.clear()
            try:
                looks += 1
                closely = looks % CLOSE_LOOKS == 0
                if not await NETWORK.run(self.look_closely if closely else self.look):
                    _log.warning("table %s, or the networks of this node, changed; replacing it", self._table)
            except NetworkError as error:
                looking.fail(error)
            else:
                looking.succeed()

    def close(self, *, remove: bool) -> None:
        """Stops guarding; with `remove`, deletes the table as well. Blocks. Raises NetworkError."""
        with self._lock:
            if remove and self._table in nftables.tables():
                nftables.run(f"delete table inet {self._table}")
            self._applied = None

    def _wanted(self, connected: frozenset[str]) -> Guarded:
        return replace(
            self._settings,
            vnis=frozenset(carried.vni for carried in self._networks.values() if carried.vni),
            vxlan_ports=frozenset(carried.port for carried in self._networks.values() if carried.vni),
            peers=frozenset(
                (carried.vni, peer) for carried in self._networks.values() if carried.vni for peer in carried.peers
            ),
            fleet=self._fleet,
            connected=connected,
            name_servers=self._name_servers,
            routers=self._routers,
            published=self._published,
            leased=self._leased,
        )

    def _known(self, name: str) -> frozenset[str]:
        """Returns the addresses in a set of the table that a former process left;
        none without it, and of another version without the set.
        """
        if self._table in nftables.tables():
            with contextlib.suppress(NetworkError):
                return parse_addresses(nftables.run(f"list set inet {self._table} {name}"))
        return frozenset()

    def _update(self) -> None:
        """Brings the sets that change with networks and fleet up to date."""
        if self._applied is None:
            return
        wanted = self._wanted(self._applied.connected)
        if commands := changes(self._applied, wanted):
            try:
                nftables.run(commands)
            except NetworkError as error:
                _log.info("replacing table %s: %s", self._table, error)
                self._apply()
            else:
                self._applied = wanted

    def _apply(self) -> None:
        wanted = self._wanted(_connected())
        nftables.run(whole_table(wanted))
        self._applied = wanted
        self._left_as = self._listing()

    def _listing(self) -> str:
        """Returns the table's rules, without the elements of sets, which change as networks do."""
        return nftables.run(f"list table inet {self._table}", terse=True)

    def _words(self) -> Sequence[str]:
        """Returns the words of the whole table, which two lists of the same have in common."""
        return sorted(settled(nftables.run(f"list table inet {self._table}")).replace(",", " ").split())


def _tracked() -> int:
    try:
        return int(TRACKED.read_text())
    except (OSError, ValueError):
        return USUALLY_TRACKED


def _connected() -> frozenset[str]:
    with route_netlink.connected() as netlink:
        return observe_connected(netlink)
