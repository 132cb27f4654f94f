"""From the wire's Network to ours; the one place that knows both."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from retinue.agent.network.core.topology import Member, Network, check

if TYPE_CHECKING:
    from retinue.agent.v1 import agent_service_pb2


def network_from_message(message: agent_service_pb2.Network) -> Network:
    """Returns the network of a message, checked. Raises InvalidNetworkError, naming what is wrong with it."""
    network = Network(
        session_id=message.session_id,
        vni=message.vni,
        subnet=message.subnet,
        mtu=message.mtu,
        members=tuple(
            Member(
                kernel_id=member.kernel_id,
                hostname=member.hostname,
                address=member.address,
                mac=member.mac.lower(),
                underlay_address=_usual(member.underlay_address),
                local=member.local,
            )
            for member in message.members
        ),
    )
    check(network)
    return network


def _usual(address: str) -> str:
    """Returns the address in the form that the kernel reports it in, so that equal ones compare equal; else as it is."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address
