"""Plans a kernel's egress link: compares the desired with the observed state and returns the steps between. Pure.

A veth joins the kernel to its node, nothing else is on it, and neither end asks for addresses: both know the other
one's by permanent neighbours. The kernel has one address, of a range that exists inside nodes only, and a default
route; the node has a route to that one address. Both go with the kernel's network namespace,
or with the link when that is removed first.

Programs of a cluster session announce to each other the address that they find: the first one, or all, or the source
of the default route. So a kernel with a session's network has that network's address alone: its egress link has none,
Linux takes the session's as the source, and `link_translation` in its namespace puts the link's own in its place.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.network.core.observed import AddressEntry, NeighbourEntry, RouteEntry
from retinue.agent.network.core.operations import (
    BringUp,
    CreateVeth,
    DeleteLink,
    Namespace,
    Operation,
    PutEntry,
    SetLink,
    Step,
)
from retinue.agent.network.core.rules import EGRESS_PREFIX, POOL
from retinue.agent.network.errors import NetworkError

if TYPE_CHECKING:
    from retinue.agent.network.core.observed import Link, Observed
    from retinue.agent.network.core.operations import Entry

OUT_LINK = "out0"
"""The kernel's end."""
OUT_LINK_INDEX = 201
GATEWAY = "169.254.1.1"
"""The gateway of the kernel's default route. No interface has this address: the neighbour entry is all that counts."""
GATEWAY_MAC = "0e:59:00:00:00:01"
SLOTS = ipaddress.IPv4Network(POOL).num_addresses - 2
"""Number of egress links that a node has room for. A slot decides the address, and the index of the node's end."""
_FIRST_INDEX = 1 << 20
_TAG_LENGTH = 4
_HASH_LENGTH = 8


@dataclass(frozen=True, slots=True)
class EgressLink:
    """The desired egress link: the name of the node's end, its slot, its MTU in bytes,
    and the kernel's address in its session's network, empty when it has none.
    """

    name: str
    slot: int
    mtu: int
    session_address: str = ""

    @property
    def index(self) -> int:
        """Returns the index of the node's end, which Linux gives to one interface of a namespace only."""
        return _FIRST_INDEX + self.slot

    @property
    def address(self) -> str:
        """Returns the kernel's address."""
        return str(ipaddress.IPv4Network(POOL)[self.slot + 1])

    @property
    def mac(self) -> str:
        """Returns the MAC of the kernel's end."""
        return ":".join(f"{octet:02x}" for octet in (0x0A, 0x59, *ipaddress.IPv4Address(self.address).packed))


def link_prefix(label: str) -> str:
    """Returns the prefix of the names of an agent's egress links; `label` is the agent's part of names."""
    return EGRESS_PREFIX + _digest(label)[:_TAG_LENGTH]


def link_name(label: str, attempt_id: str) -> str:
    """Returns the name of the node's end of an attempt's egress link, of 15 characters."""
    return link_prefix(label) + _digest(attempt_id)[:_HASH_LENGTH]


def slot_of(link: Link) -> int | None:
    """Returns the slot of a node's end; None for a link that was not made here."""
    slot = link.index - _FIRST_INDEX
    return slot if 0 <= slot < SLOTS else None


def plan_egress_link(link: EgressLink, node: Observed, kernel: Observed) -> tuple[Step, ...]:
    """Returns the steps to the desired egress link; none when it is in place.

    `node` holds the link of that name, if any, with its routes and neighbours; `kernel` all of the kernel's namespace.
    Raises NetworkError when the kernel has an interface of another kind by the name of its end.
    """
    outer, inner = node.links.get(link.name), kernel.links.get(OUT_LINK)
    if inner is not None and inner.kind != "veth":
        raise NetworkError(f"the kernel's namespace has an {OUT_LINK} that is not ours, of kind {inner.kind!r}")
    steps: list[Step] = []
    if outer is None or inner is None or not _same(link, outer, inner):
        steps += [Step(Namespace.NODE, DeleteLink(outer.index))] if outer is not None else []
        steps += [Step(Namespace.KERNEL, DeleteLink(inner.index))] if inner is not None else []
        index = _free_index(kernel)
        create = CreateVeth(
            index=link.index,
            name=link.name,
            mtu=link.mtu,
            master=0,
            peer_index=index,
            peer_name=OUT_LINK,
            peer_mac=link.mac,
            mac=GATEWAY_MAC,
        )
        steps.append(Step(Namespace.NODE, create))
        up: list[Operation] = [BringUp(index)]
        found_outside: set[Entry] = set()
        found_inside: set[Entry] = set()
    else:
        index = inner.index
        if not outer.up or outer.mtu != link.mtu:
            steps.append(Step(Namespace.NODE, SetLink(outer.index, link.mtu, master=0)))
        up = [] if inner.up and inner.mtu == link.mtu else [SetLink(index, link.mtu, master=0)]
        found_outside = {*node.neighbours, *node.routes}
        found_inside = {*kernel.addresses, *kernel.neighbours, *kernel.routes}
    outside: list[Entry] = [NeighbourEntry(link.address, link.mac), RouteEntry(link.index, f"{link.address}/32")]
    steps += [Step(Namespace.NODE, PutEntry(link.index, entry)) for entry in outside if entry not in found_outside]
    loopback = kernel.links.get("lo")
    if loopback is not None and not loopback.up:
        up.append(BringUp(loopback.index))
    address = [] if link.session_address else [AddressEntry(index, link.address, 32)]
    inside: list[Entry] = [
        *address,
        NeighbourEntry(GATEWAY, GATEWAY_MAC),
        RouteEntry(index, "0.0.0.0/0", GATEWAY),
    ]
    up += [PutEntry(index, entry) for entry in inside if entry not in found_inside]
    return (*steps, *(Step(Namespace.KERNEL, operation) for operation in up))


def _free_index(kernel: Observed) -> int:
    """Returns an index for the kernel's end, behind that of a session's network."""
    taken = {link.index for link in kernel.links.values() if link.name != OUT_LINK}
    return OUT_LINK_INDEX if OUT_LINK_INDEX not in taken else max(taken) + 1


def _same(link: EgressLink, outer: Link, inner: Link) -> bool:
    paired = (outer.kind, outer.peer, inner.peer) == ("veth", inner.index, outer.index)
    return paired and (outer.index, outer.mac, inner.mac) == (link.index, GATEWAY_MAC, link.mac)


def _digest(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()
