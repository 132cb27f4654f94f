"""The observed state of one network namespace, as plain values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """The settings of a bridge."""

    spanning_tree: bool
    multicast_snooping: bool


@dataclass(frozen=True, slots=True)
class TunnelSettings:
    """The settings of a VXLAN device; `uplink` is an interface's index in the node's namespace, `ttl` counts hops."""

    vni: int
    local: str
    uplink: int
    port: int
    learning: bool
    ttl: int


@dataclass(frozen=True, slots=True)
class PortSettings:
    """The settings of a port of a bridge; `locked` is None on a Linux that does not know it."""

    learning: bool
    unicast_flood: bool
    multicast_flood: bool
    broadcast_flood: bool
    neighbour_suppression: bool
    locked: bool | None


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface; `master` and `peer` are indices, 0 for none. `mtu` is in bytes."""

    index: int
    name: str
    kind: str
    mac: str
    mtu: int
    up: bool
    master: int = 0
    peer: int = 0
    bridge: BridgeSettings | None = None
    tunnel: TunnelSettings | None = None
    port: PortSettings | None = None


@dataclass(frozen=True, slots=True)
class TunnelEntry:
    """Behind which node a MAC is: an entry of the VXLAN device's own table."""

    mac: str
    destination: str


@dataclass(frozen=True, slots=True)
class StationEntry:
    """Behind which port a MAC is: a static entry of the bridge's table."""

    port: int
    mac: str


@dataclass(frozen=True, slots=True)
class NeighbourEntry:
    """The MAC of an address: a permanent neighbour of the bridge."""

    address: str
    mac: str


@dataclass(frozen=True, slots=True)
class AddressEntry:
    """An IPv4 address of an interface."""

    link: int
    address: str
    prefix_length: int


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """An IPv4 route of the main table; without a gateway, what it leads to is on the link itself."""

    link: int
    destination: str
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """One network namespace: interfaces by name, and entries of the tables that matter here.

    `neighbours` are those of the link that is asked for; of a session's namespace, those of the bridge, and beside them
    `probe_neighbours` of the link for probes.
    """

    links: Mapping[str, Link] = field(default_factory=dict)
    tunnels: frozenset[TunnelEntry] = frozenset()
    stations: frozenset[StationEntry] = frozenset()
    neighbours: frozenset[NeighbourEntry] = frozenset()
    addresses: frozenset[AddressEntry] = frozenset()
    routes: frozenset[RouteEntry] = frozenset()
    probe_neighbours: frozenset[NeighbourEntry] = frozenset()


@dataclass(frozen=True, slots=True)
class Uplink:
    """The node's interface that carries VXLAN: `index` in the node's namespace,
    its `address` and its `mtu` in bytes.
    """

    index: int
    name: str
    address: str
    mtu: int
