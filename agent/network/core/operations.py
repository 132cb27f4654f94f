"""Steps that change links, as data. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from retinue.agent.network.core.observed import (
        AddressEntry,
        BridgeSettings,
        NeighbourEntry,
        PortSettings,
        RouteEntry,
        StationEntry,
        TunnelEntry,
        TunnelSettings,
    )

Entry: TypeAlias = "TunnelEntry | StationEntry | NeighbourEntry | AddressEntry | RouteEntry"
"""A row of one of the tables that belong to an interface."""


@dataclass(frozen=True, slots=True)
class CreateBridge:
    """A bridge, up from birth."""

    index: int
    name: str
    mac: str
    mtu: int
    settings: BridgeSettings


@dataclass(frozen=True, slots=True)
class SetBridge:
    """New settings for a bridge that exists."""

    index: int
    settings: BridgeSettings


@dataclass(frozen=True, slots=True)
class CreateTunnel:
    """A VXLAN device: asked for in the node's namespace, where its UDP socket stays, and born in the session's."""

    index: int
    name: str
    mtu: int
    settings: TunnelSettings


@dataclass(frozen=True, slots=True)
class CreateVeth:
    """A pair of interfaces: one end up from birth, a port of the bridge unless `master` is 0,
    the other in the kernel's namespace.

    An empty `mac` leaves the choice to Linux.
    """

    index: int
    name: str
    mtu: int
    master: int
    peer_index: int
    peer_name: str
    peer_mac: str
    mac: str = ""


@dataclass(frozen=True, slots=True)
class SetLink:
    """An interface is given an MTU and a master, 0 for none, and brought up."""

    index: int
    mtu: int
    master: int


@dataclass(frozen=True, slots=True)
class BringUp:
    """An interface is brought up as it is."""

    index: int


@dataclass(frozen=True, slots=True)
class SetPort:
    """New settings for a port of the bridge."""

    index: int
    settings: PortSettings


@dataclass(frozen=True, slots=True)
class DeleteLink:
    """An interface is removed, and with it every entry of any table that names it."""

    index: int


@dataclass(frozen=True, slots=True)
class PutEntry:
    """An entry is made, or replaces the one that has its key. `link` is the interface whose table it is in."""

    link: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class DropEntry:
    """An entry is removed. `link` is the interface whose table it is in."""

    link: int
    entry: Entry


Operation: TypeAlias = (
    CreateBridge
    | SetBridge
    | CreateTunnel
    | CreateVeth
    | SetLink
    | BringUp
    | SetPort
    | DeleteLink
    | PutEntry
    | DropEntry
)


class Namespace(enum.Enum):
    """In which network namespace an operation is asked for."""

    NODE = "node"
    SESSION = "session"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True)
class Step:
    """An operation and where it is asked for."""

    namespace: Namespace
    operation: Operation
