"""What plans say in the cases one can read; the property tests have all the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.agent.network.core.observed import (
    AddressEntry,
    BridgeSettings,
    Link,
    NeighbourEntry,
    Observed,
    PortSettings,
    StationEntry,
    TunnelEntry,
    TunnelSettings,
    Uplink,
)
from retinue.agent.network.core.operations import (
    BringUp,
    CreateBridge,
    CreateTunnel,
    CreateVeth,
    Namespace,
    PutEntry,
    SetLink,
    SetPort,
    Step,
)
from retinue.agent.network.core.plan import overhead, plan_attachment, plan_network
from retinue.agent.network.core.topology import Network
from retinue.agent.network.errors import InvalidNetworkError, NetworkError
from tests.unit.agent.network.topologies import MAIN, SESSION, SUB

NETWORK = Network(SESSION, 77, "10.128.0.0/28", 1450, (MAIN, SUB))
UPLINK = Uplink(4, "eth0", "192.0.2.1", 1500)
LOOPBACK = Link(1, "lo", "", "00:00:00:00:00:00", 65536, up=False)
BRIDGE = Link(101, "br0", "bridge", "0e:58:0a:80:00:00", 1450, up=True, bridge=BridgeSettings(False, False))


def test_a_network_on_two_nodes_from_nothing() -> None:
    assert plan_network(NETWORK, UPLINK, Observed({"lo": LOOPBACK})) == (
        Step(Namespace.SESSION, CreateBridge(101, "br0", "0e:58:0a:80:00:00", 1450, BridgeSettings(False, False))),
        Step(
            Namespace.NODE,
            CreateTunnel(102, "vx0", 1450, TunnelSettings(77, "192.0.2.1", 4, 4789, learning=False, ttl=64)),
        ),
        Step(Namespace.SESSION, SetLink(102, 1450, master=101)),
        Step(
            Namespace.SESSION,
            SetPort(102, PortSettings(False, False, False, False, neighbour_suppression=True, locked=False)),
        ),
        Step(Namespace.SESSION, PutEntry(102, StationEntry(102, SUB.mac))),
        Step(Namespace.SESSION, PutEntry(102, TunnelEntry(SUB.mac, SUB.underlay_address))),
        Step(Namespace.SESSION, PutEntry(101, NeighbourEntry(SUB.address, SUB.mac))),
    )


def test_a_network_on_one_node_is_a_bridge() -> None:
    local = Network(SESSION, 0, "10.128.0.0/28", 1500, (MAIN,))
    (step,) = plan_network(local, None, Observed({"lo": LOOPBACK}))
    assert isinstance(step.operation, CreateBridge)


def test_a_kernel_is_attached() -> None:
    assert plan_attachment(NETWORK, MAIN, Observed({"br0": BRIDGE}), Observed({"lo": LOOPBACK})) == (
        Step(Namespace.SESSION, CreateVeth(1002, "k2", 1450, 101, 101, "eth0", MAIN.mac)),
        Step(
            Namespace.SESSION,
            SetPort(1002, PortSettings(False, False, True, True, neighbour_suppression=False, locked=True)),
        ),
        Step(Namespace.SESSION, PutEntry(1002, StationEntry(1002, MAIN.mac))),
        Step(Namespace.KERNEL, BringUp(1)),
        Step(Namespace.KERNEL, BringUp(101)),
        Step(Namespace.KERNEL, PutEntry(101, AddressEntry(101, "10.128.0.2", 28))),
    )


def test_an_index_that_is_taken_is_not_chosen() -> None:
    kernel = Observed({"lo": LOOPBACK, "sit0": Link(101, "sit0", "sit", "", 1480, up=False)})
    steps = plan_attachment(NETWORK, MAIN, Observed({"br0": BRIDGE}), kernel)
    assert steps[0].operation == CreateVeth(1002, "k2", 1450, 101, 102, "eth0", MAIN.mac)


def test_an_older_linux_without_locked_ports_is_not_repaired_for_ever() -> None:
    port = PortSettings(False, False, True, True, neighbour_suppression=False, locked=None)
    outer = Link(1002, "k2", "veth", "aa:00:00:00:00:01", 1450, up=True, master=101, peer=101, port=port)
    session = Observed({"br0": BRIDGE, "k2": outer}, stations=frozenset({StationEntry(1002, MAIN.mac)}))
    local = Network(SESSION, 0, "10.128.0.0/28", 1450, (MAIN,))
    assert plan_network(local, None, session) == ()


def test_refusals() -> None:
    with pytest.raises(NetworkError, match="no bridge yet"):
        plan_attachment(NETWORK, MAIN, Observed(), Observed({"lo": LOOPBACK}))
    foreign = Link(2, "eth0", "macvlan", MAIN.mac, 1500, up=True)
    with pytest.raises(NetworkError, match="not ours, of kind 'macvlan'"):
        plan_attachment(NETWORK, MAIN, Observed({"br0": BRIDGE}), Observed({"eth0": foreign}))
    with pytest.raises(NetworkError, match="no underlay address"):
        plan_network(NETWORK, None, Observed())
    with pytest.raises(InvalidNetworkError, match="eth0 carries 1499, which leaves 1449"):
        plan_network(NETWORK, replace(UPLINK, mtu=1499), Observed())
    with pytest.raises(InvalidNetworkError, match="leaves 1430"):
        plan_network(NETWORK, replace(UPLINK, address="2001:db8::1"), Observed())


def test_what_vxlan_takes() -> None:
    assert overhead("192.0.2.1") == 50
    assert overhead("2001:db8::1") == 70


def test_the_tunnel_has_the_port_of_its_network() -> None:
    network = replace(NETWORK, vxlan_port=14789)
    made = [step.operation for step in plan_network(network, UPLINK, Observed())]
    assert [step.settings.port for step in made if isinstance(step, CreateTunnel)] == [14789]
