"""From the wire's Network to ours."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from retinue.agent.api.convert import network_from_message
from retinue.agent.network.core.topology import Network
from retinue.agent.network.errors import InvalidNetworkError
from retinue.agent.v1 import agent_service_pb2
from tests.unit.agent.network.topologies import MAIN, SESSION, SUB


def message(**changes: str) -> agent_service_pb2.Network:
    members = [agent_service_pb2.Member(**asdict(MAIN)), agent_service_pb2.Member(**{**asdict(SUB), **changes})]
    return agent_service_pb2.Network(session_id=SESSION, vni=77, subnet="10.128.0.0/28", mtu=1450, members=members)


def test_every_field_comes_over() -> None:
    assert network_from_message(message()) == Network(SESSION, 77, "10.128.0.0/28", 1450, (MAIN, SUB))


@pytest.mark.parametrize(("sent", "port"), [(0, 4789), (14789, 14789)])
def test_a_manager_that_names_no_port_means_the_usual_one(sent: int, port: int) -> None:
    wire = message()
    wire.vxlan_port = sent
    assert network_from_message(wire).vxlan_port == port


def test_a_port_that_is_none_is_refused() -> None:
    wire = message()
    wire.vxlan_port = 70000
    with pytest.raises(InvalidNetworkError, match="port 70000 of VXLAN is none"):
        network_from_message(wire)


def test_spellings_become_the_kernels() -> None:
    network = network_from_message(message(mac=SUB.mac.upper(), underlay_address="2001:DB8:0::1"))
    assert network.members[1].mac == SUB.mac
    assert network.members[1].underlay_address == "2001:db8::1"


def test_a_bad_one_is_refused() -> None:
    with pytest.raises(InvalidNetworkError, match="underlay address: 'nowhere'"):
        network_from_message(message(underlay_address="nowhere"))
