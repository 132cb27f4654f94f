"""Writes the rules of a node's packet filter, as the text of one table. Pure.

Two things are guarded. VXLAN for this agent's sessions is taken from the nodes of their other kernels only, on whatever
address of the node it comes in. And what leaves a kernel by its egress link goes to the outside world only: never to
the node itself, to another kernel, to any node, manager or database, to a port of VXLAN, or to an address that is not
public or is of a network that the node is on, unless the node's administrator allows it; and never with another source
than the kernel's own. A connection to one of them is refused at once: a program that tries several addresses, or waits
for one, finds out. So is one more than a kernel may have: all kernels share what a node can keep track of.

Published ports are the one way in: routers, and no others, reach a number on the node's address that leads to a port of
a kernel. The kernel answers, and still opens nothing to a router.

Leased ports are another, for gateways: each at its own number, for the one address that has leased it. Inside the
kernel's namespace, a table leads from that number to the port at the loopback address,
where most programs for one person listen.

Rules match the agent's egress links by the prefix of their names, so that a kernel's coming and going changes no rule.
Chains come before those of other tables, and what they let pass is still theirs to refuse.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.network.core.topology import VXLAN_PORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

POOL = "198.18.0.0/15"
"""Addresses of egress links, inside a node only: a range no site and no part of the Internet has (RFC 2544)."""
EGRESS_PREFIX = "rte"
"""Prefix of the names of all agents' egress links."""
NEVER = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", POOL, "224.0.0.0/3")
"""Networks that no kernel reaches, whatever is allowed: the node's loopback, networks without a router,
services of a cloud.
"""
NOT_PUBLIC = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16")
"""Networks that no kernel reaches unless allowed: the addresses of sites (RFC 1918, RFC 6598)."""
INNER_TABLE = "retinue"
"""Name of the table of leased ports in the namespace of a kernel."""
TRANSLATION_TABLE = "retinue-egress"
"""Name of the table that translates addresses there."""

CONNECTIONS, OPENINGS = 16_384, 512
"""Connections of a kernel to the outside that a node keeps track of, and new ones a second, where it tracks as many as
Linux has by default: 262,144 of all kernels.
"""
COUNTED = ("tracked", "openings")
"""Sets that Linux itself fills."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A published port: its number on the node, and the address and the port of the kernel.
    A `closed` kernel opens nothing to the outside.
    """

    number: int
    address: str
    port: int
    closed: bool = False


@dataclass(frozen=True, slots=True)
class LeasedForward:
    """A leased port: who may connect, its number on the node and in the kernel's namespace,
    and the address of the kernel.
    """

    source: str
    number: int
    address: str


@dataclass(frozen=True, slots=True)
class Guarded:
    """The inputs of a table. Addresses and networks are IPv4 but for those of `peers`;
    `links` is the prefix of the names of egress links.

    `vnis` are those of this agent's networks, `vxlan_ports` the ports that these have, `peers` each of them with a node
    of its other kernels. `fleet` are all
    nodes, managers and databases, `connected` the networks the node is on; kernels reach neither, except for names at
    `name_servers`. `allowed` are networks that kernels may reach although they are not public or the node is on
    them. `routers` alone reach `published` ports, and the source of each of `leased` alone reaches that. A kernel has
    at most so many `connections` at a time, and `openings` of new ones a second after as many as it may have.
    """

    table: str
    links: str
    vnis: frozenset[int] = frozenset()
    peers: frozenset[tuple[int, str]] = frozenset()
    fleet: frozenset[str] = frozenset()
    connected: frozenset[str] = frozenset()
    name_servers: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    routers: frozenset[str] = frozenset()
    published: frozenset[Forward] = frozenset()
    leased: frozenset[LeasedForward] = frozenset()
    vxlan_ports: frozenset[int] = frozenset()
    connections: int = CONNECTIONS
    openings: int = OPENINGS

    @property
    def gateways(self) -> set[str]:
        """Returns the addresses that have leased ports."""
        return {one.source for one in self.leased}

    @property
    def closed(self) -> set[str]:
        """Returns the addresses of kernels that open nothing to the outside."""
        return {one.address for one in self.published if one.closed}


def whole_table(guarded: Guarded) -> str:
    """Commands that put the table in place of the one there is, if any, as one transaction."""
    name, links = guarded.table, guarded.links
    peers4, peers6 = _pairs(guarded.peers)
    return f"""
add table inet {name}
delete table inet {name}
table inet {name} {{
    set vxlan_ports {{ type inet_service; {_elements(_ports(guarded))} }}
    set vnis {{ typeof @th,96,24; {_elements(map(str, sorted(guarded.vnis)))} }}
    set peers4 {{ typeof ip saddr . @th,96,24; {_elements(peers4)} }}
    set peers6 {{ typeof ip6 saddr . @th,96,24; {_elements(peers6)} }}
    set fleet {{ type ipv4_addr; {_elements(_by_version(guarded.fleet)[0])} }}
    set never {{ type ipv4_addr; flags interval; auto-merge; {_elements(NEVER)} }}
    set connected {{ type ipv4_addr; flags interval; auto-merge; {_elements(guarded.connected)} }}
    set allowed {{ type ipv4_addr; flags interval; auto-merge; {_elements(guarded.allowed)} }}
    set not_public {{ type ipv4_addr; flags interval; {_elements(NOT_PUBLIC)} }}
    set name_servers {{ type ipv4_addr; {_elements(guarded.name_servers)} }}
    set routers {{ type ipv4_addr; {_elements(_by_version(guarded.routers)[0])} }}
    set closed {{ type ipv4_addr; {_elements(guarded.closed)} }}
    map published {{ type inet_service : ipv4_addr . inet_service; {_elements(_forwards(guarded).values())} }}
    set gateways {{ type ipv4_addr; {_elements(guarded.gateways)} }}
    map leased {{ type ipv4_addr . inet_service : ipv4_addr . inet_service; {_elements(_leased(guarded).values())} }}
    set tracked {{ type ipv4_addr; flags dynamic; size 65535; }}
    set openings {{ type ipv4_addr; flags dynamic, timeout; timeout 1m; size 65535; }}
    chain arrivals {{
        type filter hook input priority filter - 10; policy accept;
        udp dport @vxlan_ports @th,96,24 @vnis ip saddr . @th,96,24 != @peers4 drop
        udp dport @vxlan_ports @th,96,24 @vnis ip6 saddr . @th,96,24 != @peers6 drop
        iifname "{links}*" ct status dnat ct direction reply accept
        iifname "{links}*" goto refused
    }}
    chain numbers {{
        type nat hook prerouting priority dstnat; policy accept;
        ip saddr @routers fib daddr type local meta l4proto tcp dnat ip to tcp dport map @published
        fib daddr type local meta l4proto tcp dnat ip to ip saddr . tcp dport map @leased
    }}
    chain own_numbers {{
        type nat hook output priority -100; policy accept;
        ip saddr @routers fib daddr type local meta l4proto tcp dnat ip to tcp dport map @published
        fib daddr type local meta l4proto tcp dnat ip to ip saddr . tcp dport map @leased
    }}
    chain sources {{
        type filter hook prerouting priority raw; policy accept;
        iifname "{links}*" meta nfproto != ipv4 drop
        iifname "{links}*" fib saddr . iif oif missing drop
    }}
    chain ways {{
        type filter hook forward priority filter - 10; policy accept;
        iifname "{links}*" jump outward
        oifname "{links}*" jump inward
    }}
    chain outward {{
        ct status dnat ct direction reply accept
        ip saddr @closed goto refused
        ct state new add @tracked {{ ip saddr ct count over {guarded.connections} }} goto refused
        ct state new update @openings {{ ip saddr limit rate over {guarded.openings}/second burst {guarded.connections} packets }} goto refused
        oifname "{EGRESS_PREFIX}*" goto refused
        udp dport @vxlan_ports goto refused
        ip daddr @name_servers meta l4proto {{ tcp, udp }} th dport 53 accept
        ip daddr @fleet goto refused
        ip daddr @never goto refused
        fib daddr type != unicast goto refused
        ip daddr @allowed accept
        ip daddr @connected goto refused
        ip daddr @not_public goto refused
    }}
    chain refused {{
        meta l4proto tcp reject with tcp reset
        reject
    }}
    chain inward {{
        ct status dnat ip saddr @routers accept
        ct status dnat ip saddr @gateways accept
        ct state established,related accept
        drop
    }}
    chain own {{
        type filter hook output priority filter - 10; policy accept;
        oifname "{links}*" icmp type destination-unreachable accept
        oifname "{links}*" jump inward
    }}
    chain addresses {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {POOL} oifname != "{EGRESS_PREFIX}*" masquerade
    }}
}}
"""


def inner_table(link: str, ports: Mapping[int, int]) -> str:
    """Commands for the namespace of a kernel: leased ports, by their numbers,
    lead from its egress link to its loopback address.

    Programs see connections from there. Nothing in the kernel has the right to change that.
    """
    elements = _elements(f"{number} : 127.0.0.1 . {port}" for number, port in ports.items())
    return f"""
add table ip {INNER_TABLE}
delete table ip {INNER_TABLE}
table ip {INNER_TABLE} {{
    map leased {{ type inet_service : ipv4_addr . inet_service; {elements} }}
    chain numbers {{
        type nat hook prerouting priority dstnat; policy accept;
        iifname "{link}" meta l4proto tcp dnat ip to tcp dport map @leased
    }}
    chain sources {{
        type nat hook input priority 100; policy accept;
        iifname "{link}" ip daddr 127.0.0.1 ct status dnat snat to 127.0.0.1
    }}
}}
"""


def link_translation(link: str, session_link: str, session_address: str, address: str) -> str:
    """Commands for the namespace of a kernel with a session's network: what leaves by its egress link has the link's
    address, and what comes to that address, from the kernel itself too (probes connect as routers do), has the
    session's.

    Leased ports come before. What stays in the session's network is not tracked.
    """
    return f"""
add table ip {TRANSLATION_TABLE}
delete table ip {TRANSLATION_TABLE}
table ip {TRANSLATION_TABLE} {{
    chain untracked {{
        type filter hook prerouting priority raw; policy accept;
        iifname "{session_link}" notrack
    }}
    chain own_untracked {{
        type filter hook output priority raw; policy accept;
        oifname "{session_link}" notrack
    }}
    chain arrivals {{
        type nat hook prerouting priority dstnat + 10; policy accept;
        iifname "{link}" ip daddr {address} dnat to {session_address}
    }}
    chain own_arrivals {{
        type nat hook output priority -100; policy accept;
        ip daddr {address} dnat to {session_address}
    }}
    chain departures {{
        type nat hook postrouting priority srcnat; policy accept;
        oifname "{link}" snat to {address}
    }}
}}
"""


def changes(before: Guarded, after: Guarded) -> str:
    """Commands that turn one table's sets of what comes and goes into another's; all else has to be the same."""
    peers_before, peers_after = _pairs(before.peers), _pairs(after.peers)
    sets = {
        "vxlan_ports": (_ports(before), _ports(after)),
        "vnis": (set(map(str, before.vnis)), set(map(str, after.vnis))),
        "peers4": (peers_before[0], peers_after[0]),
        "peers6": (peers_before[1], peers_after[1]),
        "fleet": (_by_version(before.fleet)[0], _by_version(after.fleet)[0]),
        "routers": (_by_version(before.routers)[0], _by_version(after.routers)[0]),
        "name_servers": (set(before.name_servers), set(after.name_servers)),
        "closed": (before.closed, after.closed),
        "gateways": (before.gateways, after.gateways),
    }
    lines = []
    for name, forwards in (("published", _forwards), ("leased", _leased)):
        earlier, later = forwards(before), forwards(after)
        # A number that leads elsewhere has to go before it comes again.
        gone = sorted(key for key, element in earlier.items() if later.get(key) != element)
        come = sorted(element for key, element in later.items() if earlier.get(key) != element)
        lines += [
            f"{verb} element inet {after.table} {name} {{ {', '.join(elements)} }}"
            for verb, elements in (("delete", gone), ("add", come))
            if elements
        ]
    for name, (old, new) in sets.items():
        for verb, elements in (("add", new - old), ("delete", old - new)):
            if elements:
                lines.append(f"{verb} element inet {after.table} {name} {{ {', '.join(sorted(elements))} }}")
    return "\n".join(lines)


def settled(listing: str) -> str:
    """Returns a listing of the table without the sets that Linux fills by itself."""
    return re.sub(rf"\tset ({'|'.join(COUNTED)}) {{.*?\n\t}}\n", "", listing, flags=re.DOTALL)


def parse_addresses(listing: str) -> frozenset[str]:
    """Returns the addresses among the elements of a set, as `nft list set` prints them."""
    _, _, rest = listing.partition("elements = {")
    found = []
    for word in rest.partition("}")[0].replace(",", " ").split():
        try:
            found.append(str(ipaddress.ip_address(word)))
        except ValueError:
            continue
    return frozenset(found)


def obstacles(listing: str, own: str) -> list[str]:
    """Chains of other tables, as `family table chain`, that drop what is forwarded unless a
    rule of theirs lets it pass.

    `listing` is what `nft list chains` prints; the rules of a host's firewall are its administrator's to change.
    """
    found = []
    table, chain = "", ""
    for line in listing.splitlines():
        words = line.split()
        if words[:1] == ["table"]:
            table = " ".join(words[1:3])
        elif words[:1] == ["chain"]:
            chain = words[1]
        elif "hook forward" in line and "policy drop" in line and table != f"inet {own}":
            found.append(f"{table} {chain}")
    return found


def _by_version(addresses: Iterable[str]) -> tuple[set[str], set[str]]:
    parsed = [ipaddress.ip_address(address) for address in addresses]
    return {str(one) for one in parsed if one.version == 4}, {str(one) for one in parsed if one.version == 6}  # noqa: PLR2004


def _ports(guarded: Guarded) -> set[str]:
    """Elements of the set of ports of VXLAN: no kernel sends to the usual one either."""
    return {str(port) for port in guarded.vxlan_ports | {VXLAN_PORT}}


def _pairs(peers: Iterable[tuple[int, str]]) -> tuple[set[str], set[str]]:
    """Elements of the sets of peers: a node is one in the networks it has a kernel of, and in no other."""
    parsed = [(vni, ipaddress.ip_address(address)) for vni, address in peers]
    four, six = ({f"{one} . {vni}" for vni, one in parsed if one.version == version} for version in (4, 6))
    return four, six


def _forwards(guarded: Guarded) -> dict[str, str]:
    """Elements of the map of published ports by their keys."""
    return {str(one.number): f"{one.number} : {one.address} . {one.port}" for one in guarded.published}


def _leased(guarded: Guarded) -> dict[str, str]:
    """Elements of the map of leased ports by their keys."""
    keys = {f"{one.source} . {one.number}": one for one in guarded.leased}
    return {key: f"{key} : {one.address} . {one.number}" for key, one in keys.items()}


def _elements(values: Iterable[str]) -> str:
    text = ", ".join(sorted(values))
    return f"elements = {{ {text} }}" if text else ""
