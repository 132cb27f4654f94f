"""Writes the rules of a node's packet filter, as the text of one table. Pure.

Two things are guarded. VXLAN for this agent's sessions is taken from the nodes of their other kernels only, on whatever
address of the node it comes in. And what leaves a kernel by its egress link goes to the outside world only: never to the node
itself, to another kernel, to any node, manager or database, to a port of VXLAN, or to an address that is not public
unless the node's administrator allows it; and never with another source than the kernel's own.

Rules match the agent's egress links by the prefix of their names, so that a kernel's coming and going changes no rule. Chains
come before those of other tables, and what they let pass is still theirs to refuse.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

POOL = "198.18.0.0/15"
"""Addresses of egress links, inside a node only: a range no site and no part of the Internet has (RFC 2544)."""
EGRESS_PREFIX = "rte"
"""Prefix of the names of all agents' egress links."""
NEVER = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", POOL, "224.0.0.0/3")
"""Networks that no kernel reaches, whatever is allowed: the node's loopback, networks without a router, services of a cloud."""
NOT_PUBLIC = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16")
"""Networks that no kernel reaches unless allowed: the addresses of sites (RFC 1918, RFC 6598)."""
VXLAN_PORT = 4789


@dataclass(frozen=True, slots=True)
class Guarded:
    """The inputs of a table. Addresses and networks are IPv4 but for those of `peers`; `links` is the prefix of the names of egress links.

    `vnis` are those of this agent's networks, `peers` each of them with a node of its other kernels. `fleet` are all nodes, managers
    and databases, `connected` the networks the node is on; kernels reach neither, except for names at `name_servers`.
    `allowed` are networks that kernels may reach although they are not public.
    """

    table: str
    links: str
    vnis: frozenset[int] = frozenset()
    peers: frozenset[tuple[int, str]] = frozenset()
    fleet: frozenset[str] = frozenset()
    connected: frozenset[str] = frozenset()
    name_servers: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


def whole_table(guarded: Guarded) -> str:
    """Commands that put the table in place of the one there is, if any, as one transaction."""
    name, links = guarded.table, guarded.links
    peers4, peers6 = _pairs(guarded.peers)
    never = [*NEVER, *guarded.connected]
    return f"""
add table inet {name}
delete table inet {name}
table inet {name} {{
    set vnis {{ typeof @th,96,24; {_elements(map(str, sorted(guarded.vnis)))} }}
    set peers4 {{ typeof ip saddr . @th,96,24; {_elements(peers4)} }}
    set peers6 {{ typeof ip6 saddr . @th,96,24; {_elements(peers6)} }}
    set fleet {{ type ipv4_addr; {_elements(_by_version(guarded.fleet)[0])} }}
    set never {{ type ipv4_addr; flags interval; auto-merge; {_elements(never)} }}
    set allowed {{ type ipv4_addr; flags interval; auto-merge; {_elements(guarded.allowed)} }}
    set not_public {{ type ipv4_addr; flags interval; {_elements(NOT_PUBLIC)} }}
    set name_servers {{ type ipv4_addr; {_elements(guarded.name_servers)} }}
    chain arrivals {{
        type filter hook input priority filter - 10; policy accept;
        udp dport {VXLAN_PORT} @th,96,24 @vnis ip saddr . @th,96,24 != @peers4 drop
        udp dport {VXLAN_PORT} @th,96,24 @vnis ip6 saddr . @th,96,24 != @peers6 drop
        iifname "{links}*" drop
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
        oifname "{EGRESS_PREFIX}*" drop
        udp dport {VXLAN_PORT} drop
        ip daddr @name_servers meta l4proto {{ tcp, udp }} th dport 53 accept
        ip daddr @fleet drop
        ip daddr @never drop
        ip daddr @allowed accept
        ip daddr @not_public drop
        fib daddr type != unicast drop
    }}
    chain inward {{
        ct state established,related accept
        drop
    }}
    chain own {{
        type filter hook output priority filter - 10; policy accept;
        oifname "{links}*" jump inward
    }}
    chain addresses {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {POOL} oifname != "{EGRESS_PREFIX}*" masquerade
    }}
}}
"""


def changes(before: Guarded, after: Guarded) -> str:
    """Commands that turn one table's sets of VNIs, peers and fleet into another's; all else has to be the same."""
    peers_before, peers_after = _pairs(before.peers), _pairs(after.peers)
    sets = {
        "vnis": (set(map(str, before.vnis)), set(map(str, after.vnis))),
        "peers4": (peers_before[0], peers_after[0]),
        "peers6": (peers_before[1], peers_after[1]),
        "fleet": (_by_version(before.fleet)[0], _by_version(after.fleet)[0]),
    }
    lines = []
    for name, (old, new) in sets.items():
        for verb, elements in (("add", new - old), ("delete", old - new)):
            if elements:
                lines.append(f"{verb} element inet {after.table} {name} {{ {', '.join(sorted(elements))} }}")
    return "\n".join(lines)


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
    """Chains of other tables, as `family table chain`, that drop what is forwarded unless a rule of theirs lets it pass.

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


def _pairs(peers: Iterable[tuple[int, str]]) -> tuple[set[str], set[str]]:
    """Elements of the sets of peers: a node is one in the networks it has a kernel of, and in no other."""
    parsed = [(vni, ipaddress.ip_address(address)) for vni, address in peers]
    four, six = ({f"{one} . {vni}" for vni, one in parsed if one.version == version} for version in (4, 6))
    return four, six


def _elements(values: Iterable[str]) -> str:
    text = ", ".join(sorted(values))
    return f"elements = {{ {text} }}" if text else ""
