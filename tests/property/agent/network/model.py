"""A small Linux: what the operations do to namespaces, refusing what the kernel would refuse."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from retinue.agent.network.core.observed import (
    AddressEntry,
    Link,
    NeighbourEntry,
    Observed,
    PortSettings,
    RouteEntry,
    StationEntry,
    TunnelEntry,
)
from retinue.agent.network.core.operations import (
    BringUp,
    CreateBridge,
    CreateTunnel,
    CreateVeth,
    DeleteLink,
    DropEntry,
    Namespace,
    Operation,
    PutEntry,
    SetBridge,
    SetLink,
    SetPort,
    Step,
)

NEW_PORT = PortSettings(
    learning=True,
    unicast_flood=True,
    multicast_flood=True,
    broadcast_flood=True,
    neighbour_suppression=False,
    locked=False,
)
Kind = TypeVar("Kind", TunnelEntry, StationEntry, NeighbourEntry, AddressEntry)
Entry = TunnelEntry | StationEntry | NeighbourEntry | AddressEntry


@dataclass
class FakeNamespace:
    """Interfaces by name, and entries by the link whose table they are in."""

    links: dict[str, Link] = field(
        default_factory=lambda: {"lo": Link(1, "lo", "", "00:00:00:00:00:00", 65536, up=False)}
    )
    entries: set[tuple[int, Entry]] = field(default_factory=set)

    def observed(self) -> Observed:
        def of(kind: type[Kind]) -> frozenset[Kind]:
            return frozenset(entry for _, entry in self.entries if isinstance(entry, kind))

        return Observed(dict(self.links), of(TunnelEntry), of(StationEntry), of(NeighbourEntry), of(AddressEntry))

    def link(self, index: int) -> Link:
        (found,) = (link for link in self.links.values() if link.index == index)
        return found

    def add(self, link: Link) -> None:
        assert link.name not in self.links, f"EEXIST {link.name}"
        assert link.index not in {other.index for other in self.links.values()}, f"EBUSY {link.index}"
        self.links[link.name] = link

    def remove(self, index: int) -> None:
        link = self.link(index)
        del self.links[link.name]
        self.forget(index)
        for other in list(self.links.values()):
            if other.master == index:
                self.join(other.index, 0)

    def join(self, index: int, master: int) -> None:
        link = self.link(index)
        if link.master == master:
            return
        if master:
            assert self.link(master).kind == "bridge"
        self.entries -= {
            (owner, entry) for owner, entry in self.entries if isinstance(entry, StationEntry) and owner == index
        }
        self.links[link.name] = replace(link, master=master, port=NEW_PORT if master else None)

    def forget(self, index: int) -> None:
        self.entries = {(owner, entry) for owner, entry in self.entries if owner != index}

    def set_down(self, name: str) -> None:
        link = self.links[name]
        self.links[name] = replace(link, up=False)
        self.entries = {
            (owner, entry)
            for owner, entry in self.entries
            if not (owner == link.index and isinstance(entry, NeighbourEntry))
        }


@dataclass
class Linux:
    """A session's namespace and the namespace of the kernel that is being attached."""

    session: FakeNamespace = field(default_factory=FakeNamespace)
    kernel: FakeNamespace = field(default_factory=FakeNamespace)
    kernels: list[FakeNamespace] = field(default_factory=list)

    def apply(self, step: Step) -> None:
        if isinstance(step.operation, CreateTunnel):
            assert step.namespace is Namespace.NODE
        else:
            assert step.namespace in {Namespace.SESSION, Namespace.KERNEL}
        self._apply(self.kernel if step.namespace is Namespace.KERNEL else self.session, step.operation)

    def _apply(self, here: FakeNamespace, operation: Operation) -> None:
        match operation:
            case CreateBridge(index, name, mac, mtu, settings):
                here.add(Link(index, name, "bridge", mac, mtu, up=True, bridge=settings))
            case SetBridge(index, settings):
                link = here.link(index)
                here.links[link.name] = replace(link, bridge=settings)
            case CreateTunnel(index, name, mtu, settings):
                self.session.add(Link(index, name, "vxlan", "aa:00:00:00:00:01", mtu, up=False, tunnel=settings))
            case CreateVeth(index, name, mtu, master, peer_index, peer_name, peer_mac):
                here.add(Link(index, name, "veth", "aa:00:00:00:00:02", mtu, up=True, peer=peer_index))
                here.join(index, master)
                self.kernel.add(Link(peer_index, peer_name, "veth", peer_mac, mtu, up=False, peer=index))
            case SetLink(index, mtu, master):
                here.join(index, master)
                link = here.link(index)
                here.links[link.name] = replace(link, mtu=mtu, up=True)
            case BringUp(index):
                link = here.link(index)
                here.links[link.name] = replace(link, up=True)
            case SetPort(index, settings):
                link = here.link(index)
                assert link.master, "not a port"
                here.links[link.name] = replace(link, port=settings)
            case DeleteLink(index):
                self._delete(here, index)
            case PutEntry(owner, entry):
                assert not isinstance(entry, RouteEntry), "a session's network has none"
                self._put(here, owner, entry)
            case DropEntry(owner, entry):
                assert not isinstance(entry, RouteEntry), "a session's network has none"
                # The real one is let off when the entry went with something else, the plan is not.
                here.entries.remove((owner, entry))

    def _delete(self, here: FakeNamespace, index: int) -> None:
        if index not in {link.index for link in here.links.values()}:
            # It went with its other end.
            return
        link = here.link(index)
        here.remove(index)
        for other in (self.session, self.kernel, *self.kernels):
            if other is not here and link.kind == "veth":
                for end in list(other.links.values()):
                    if end.kind == "veth" and (end.peer, end.index) == (link.index, link.peer):
                        other.remove(end.index)

    def _put(self, here: FakeNamespace, owner: int, entry: Entry) -> None:
        link = here.link(owner)
        match entry:
            case TunnelEntry(mac, _):
                assert link.kind == "vxlan"
                here.entries = {
                    (other, old) for other, old in here.entries if not (isinstance(old, TunnelEntry) and old.mac == mac)
                }
            case StationEntry(port, mac):
                assert link.master
                assert port == owner
                here.entries = {
                    (other, old)
                    for other, old in here.entries
                    if not (isinstance(old, StationEntry) and old.mac == mac)
                }
            case NeighbourEntry(address, _):
                assert link.kind == "bridge"
                assert link.up, "ENETDOWN"
                here.entries = {
                    (other, old)
                    for other, old in here.entries
                    if not (isinstance(old, NeighbourEntry) and (other, old.address) == (owner, address))
                }
            case AddressEntry(named, _, _):
                assert named == owner
        here.entries.add((owner, entry))
