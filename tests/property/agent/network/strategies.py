"""Networks of every shape that a manager may ask for."""

from __future__ import annotations

import ipaddress

from hypothesis import strategies as st

from retinue.agent.network.core.observed import Uplink
from retinue.agent.network.core.topology import Member, Network

SESSION = "0190c8f4-7d2e-7c3a-9b1f-2a5d8e4c6f01"
SUBNETS = ("10.128.0.0/28", "10.128.4.16/28", "10.200.0.0/24")
UNDERLAYS = ("192.0.2.1", "192.0.2.2", "2001:db8::3")
UPLINKS = (
    Uplink(4, "eth0", "192.0.2.9", 1500),
    Uplink(7, "eth1", "192.0.2.10", 1500),
    Uplink(4, "eth0", "2001:db8::9", 1500),
)


def member(subnet: str, offset: int, *, local: bool, underlay: str = "192.0.2.1", mac_prefix: int = 0x0A) -> Member:
    address = ipaddress.IPv4Network(subnet).network_address + offset
    mac = ":".join(f"{octet:02x}" for octet in (mac_prefix, 0x58, *address.packed))
    return Member(f"kernel-{offset}", f"host{offset}", str(address), mac, "" if local else underlay, local)


@st.composite
def networks(draw: st.DrawFn, subnet: str | None = None) -> Network:
    """A network; `subnet` fixes it."""
    chosen = draw(st.sampled_from(SUBNETS)) if subnet is None else subnet
    vni = draw(st.sampled_from((0, 1, 77, 2**24 - 1)))
    members = tuple(
        member(
            chosen,
            offset,
            local=vni == 0 or draw(st.booleans()),
            underlay=draw(st.sampled_from(UNDERLAYS)),
            mac_prefix=draw(st.sampled_from((0x0A, 0x02))),
        )
        for offset in draw(st.lists(st.integers(2, 14), min_size=1, max_size=6, unique=True))
    )
    return Network(SESSION, vni, chosen, draw(st.sampled_from((576, 1350, 1430))), members)
