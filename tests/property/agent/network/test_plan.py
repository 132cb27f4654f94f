"""Plans applied to a model: whatever was there before, one plan makes it right and the next one is empty."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.network.core.observed import Link, NeighbourEntry, StationEntry, TunnelEntry, Uplink
from retinue.agent.network.core.plan import BRIDGE, TUNNEL, plan_attachment, plan_network, port_name
from retinue.agent.network.core.topology import Network, check
from tests.property.agent.network.model import NEW_PORT, FakeNamespace, Linux
from tests.property.agent.network.strategies import SUBNETS, UPLINKS, networks

if TYPE_CHECKING:
    from collections.abc import Callable

uplinks = st.sampled_from(UPLINKS)


def ensure(linux: Linux, network: Network, uplink: Uplink) -> None:
    for step in plan_network(network, uplink, linux.session.observed()):
        linux.apply(step)


def attach_all(linux: Linux, network: Network) -> None:
    """Attaches each local member to a namespace of its own, or to the one that it has."""
    known = {namespace.links["eth0"].peer: namespace for namespace in linux.kernels if "eth0" in namespace.links}
    for member in network.members:
        if not member.local:
            continue
        port = linux.session.links.get(port_name(network, member))
        linux.kernel = known.get(port.index, FakeNamespace()) if port else FakeNamespace()
        linux.kernels.append(linux.kernel)
        for step in plan_attachment(network, member, linux.session.observed(), linux.kernel.observed()):
            linux.apply(step)
        assert plan_attachment(network, member, linux.session.observed(), linux.kernel.observed()) == ()
        (address,) = linux.kernel.observed().addresses
        assert address.address == member.address
        assert linux.kernel.links["eth0"].mac == member.mac
        assert all(link.up for link in linux.kernel.links.values())


def built(network: Network, uplink: Uplink) -> Linux:
    linux = Linux()
    ensure(linux, network, uplink)
    attach_all(linux, network)
    return linux


def _stray_entries(linux: Linux) -> None:
    session = linux.session
    for name, entry_of in (
        (TUNNEL, lambda _: TunnelEntry("00:00:00:00:00:00", "192.0.2.77")),
        (TUNNEL, lambda link: StationEntry(link.index, "0a:58:00:00:00:99")),
        (BRIDGE, lambda _: NeighbourEntry("10.128.0.99", "0a:58:00:00:00:99")),
    ):
        link = session.links.get(name)
        if link is not None and (link.master or name == BRIDGE):
            session.entries.add((link.index, entry_of(link)))


def _wrong_port(linux: Linux) -> None:
    for name, link in linux.session.links.items():
        if link.master:
            linux.session.links[name] = replace(link, port=NEW_PORT)


def _lost_master(linux: Linux) -> None:
    for link in list(linux.session.links.values()):
        if link.master:
            linux.session.join(link.index, 0)


def _down(linux: Linux) -> None:
    for name in linux.session.links:
        linux.session.set_down(name)


def _no_bridge(linux: Linux) -> None:
    if BRIDGE in linux.session.links:
        linux.session.remove(linux.session.links[BRIDGE].index)


def _no_tunnel(linux: Linux) -> None:
    if TUNNEL in linux.session.links:
        linux.session.remove(linux.session.links[TUNNEL].index)


def _foreign_bridge_mac(linux: Linux) -> None:
    if BRIDGE in linux.session.links:
        linux.session.links[BRIDGE] = replace(linux.session.links[BRIDGE], mac="aa:bb:cc:dd:ee:ff")


def _stranger(linux: Linux) -> None:
    linux.session.add(Link(5000, "k4000", "veth", "aa:00:00:00:00:05", 1500, up=True, peer=3))


def _lost_entries(linux: Linux) -> None:
    linux.session.entries = set(sorted(linux.session.entries, key=repr)[::2])


def _small(linux: Linux) -> None:
    for name, link in linux.session.links.items():
        if link.kind:
            linux.session.links[name] = replace(link, mtu=1200)


ACCIDENTS: tuple[Callable[[Linux], None], ...] = (
    _stray_entries,
    _wrong_port,
    _lost_master,
    _down,
    _no_bridge,
    _no_tunnel,
    _foreign_bridge_mac,
    _stranger,
    _lost_entries,
    _small,
)
accidents = st.lists(st.sampled_from(ACCIDENTS), max_size=4, unique=True)


@given(networks())
def test_strategies_make_valid_networks(network: Network) -> None:
    check(network)


@given(networks(), uplinks)
def test_second_plan_is_empty(network: Network, uplink: Uplink) -> None:
    linux = built(network, uplink)
    assert plan_network(network, uplink, linux.session.observed()) == ()


@given(networks(SUBNETS[0]), networks(SUBNETS[0]), uplinks, uplinks, accidents)
def test_any_state_becomes_the_one_built_from_nothing(
    old: Network, new: Network, old_uplink: Uplink, uplink: Uplink, mishaps: list[Callable[[Linux], None]]
) -> None:
    linux = built(old, old_uplink)
    for mishap in mishaps:
        mishap(linux)
    ensure(linux, new, uplink)
    attach_all(linux, new)
    assert plan_network(new, uplink, linux.session.observed()) == ()
    assert linux.session.observed() == built(new, uplink).session.observed()


@given(networks(), uplinks, st.data())
def test_a_crash_at_any_step_is_repaired(network: Network, uplink: Uplink, data: st.DataObject) -> None:
    linux = Linux()
    plan = plan_network(network, uplink, linux.session.observed())
    for step in plan[: data.draw(st.integers(0, len(plan)))]:
        linux.apply(step)
    ensure(linux, network, uplink)
    for member in network.members:
        if member.local:
            linux.kernel = FakeNamespace()
            linux.kernels.append(linux.kernel)
            attachment = plan_attachment(network, member, linux.session.observed(), linux.kernel.observed())
            for step in attachment[: data.draw(st.integers(0, len(attachment)))]:
                linux.apply(step)
    attach_all(linux, network)
    assert plan_network(network, uplink, linux.session.observed()) == ()
    assert linux.session.observed() == built(network, uplink).session.observed()


@given(networks(), uplinks)
def test_a_kernel_whose_namespace_died_is_attached_again(network: Network, uplink: Uplink) -> None:
    linux = built(network, uplink)
    for member in network.members:
        if member.local:
            # The old namespace is still dying: its veth is there.
            linux.kernel = FakeNamespace()
            for step in plan_attachment(network, member, linux.session.observed(), linux.kernel.observed()):
                linux.apply(step)
            assert plan_attachment(network, member, linux.session.observed(), linux.kernel.observed()) == ()
    assert linux.session.observed() == built(network, uplink).session.observed()


@given(networks(), uplinks)
def test_every_remote_kernel_is_known_and_nothing_else(network: Network, uplink: Uplink) -> None:
    seen = built(network, uplink).session.observed()
    remote = [member for member in network.members if not member.local]
    assert seen.tunnels == {TunnelEntry(member.mac, member.underlay_address) for member in remote}
    assert seen.neighbours == {NeighbourEntry(member.address, member.mac) for member in remote}
    assert len(seen.stations) == len(network.members)
    assert (TUNNEL in seen.links) == (network.vni != 0)
