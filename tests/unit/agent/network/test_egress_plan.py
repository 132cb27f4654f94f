"""Plans of egress links, and the text of the rules around them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.agent.network.core.egress_plan import (
    GATEWAY,
    GATEWAY_MAC,
    OUT_LINK,
    SLOTS,
    EgressLink,
    link_name,
    link_prefix,
    plan_egress_link,
    slot_of,
)
from retinue.agent.network.core.observed import AddressEntry, Link, NeighbourEntry, Observed, RouteEntry
from retinue.agent.network.core.operations import CreateVeth, DeleteLink, Namespace, PutEntry, SetLink
from retinue.agent.network.core.rules import Guarded, changes, obstacles, parse_addresses, whole_table
from retinue.agent.network.errors import NetworkError

WAY = EgressLink("rteaaaabbbbbbbb", 77, 1500)
LOOPBACK = Link(1, "lo", "", "00:00:00:00:00:00", 65536, up=True)
OUTER = Link(WAY.index, WAY.name, "veth", GATEWAY_MAC, 1500, up=True, peer=5)
INNER = Link(5, OUT_LINK, "veth", WAY.mac, 1500, up=True, peer=WAY.index)
NODE = Observed(
    {WAY.name: OUTER},
    neighbours=frozenset({NeighbourEntry(WAY.address, WAY.mac)}),
    routes=frozenset({RouteEntry(WAY.index, f"{WAY.address}/32")}),
)
KERNEL = Observed(
    {"lo": LOOPBACK, OUT_LINK: INNER},
    addresses=frozenset({AddressEntry(5, WAY.address, 32)}),
    neighbours=frozenset({NeighbourEntry(GATEWAY, GATEWAY_MAC)}),
    routes=frozenset({RouteEntry(5, "0.0.0.0/0", GATEWAY)}),
)


def test_addresses_are_hosts_of_the_pool_and_differ() -> None:
    ways = [EgressLink("x", slot, 1500) for slot in (0, 1, 255, 256, SLOTS - 1)]
    assert [way.address for way in ways] == ["198.18.0.1", "198.18.0.2", "198.18.1.0", "198.18.1.1", "198.19.255.254"]
    assert len({way.mac for way in ways}) == len(ways)
    assert [slot_of(replace(OUTER, index=way.index)) for way in ways] == [way.slot for way in ways]
    assert slot_of(LOOPBACK) is None


def test_names_fit_an_interface_and_tell_agents_apart() -> None:
    names = {link_name(agent, attempt) for agent in ("n1", "n2") for attempt in ("a.1", "a.2")}
    assert len(names) == 4
    assert {len(name) for name in names} == {15}
    assert link_name("n1", "a.1").startswith(link_prefix("n1"))
    assert not link_name("n1", "a.1").startswith(link_prefix("n2"))


def test_a_way_that_is_whole_needs_nothing() -> None:
    assert plan_egress_link(WAY, NODE, KERNEL) == ()


def test_a_new_way_is_made_before_anything_is_put_on_it() -> None:
    steps = plan_egress_link(WAY, Observed(), Observed({"lo": replace(LOOPBACK, up=False)}))
    first = steps[0].operation
    assert isinstance(first, CreateVeth)
    assert (first.index, first.master, first.peer_mac, first.mac) == (WAY.index, 0, WAY.mac, GATEWAY_MAC)
    assert first.peer_index != LOOPBACK.index
    entries = {step.operation.entry for step in steps if isinstance(step.operation, PutEntry)}
    assert RouteEntry(WAY.index, f"{WAY.address}/32") in entries
    assert RouteEntry(first.peer_index, "0.0.0.0/0", GATEWAY) in entries


@pytest.mark.parametrize(
    ("node", "kernel", "repair"),
    [
        (replace(NODE, routes=frozenset()), KERNEL, PutEntry(WAY.index, RouteEntry(WAY.index, f"{WAY.address}/32"))),
        (replace(NODE, neighbours=frozenset()), KERNEL, PutEntry(WAY.index, NeighbourEntry(WAY.address, WAY.mac))),
        (NODE, replace(KERNEL, addresses=frozenset()), PutEntry(5, AddressEntry(5, WAY.address, 32))),
        (NODE, replace(KERNEL, routes=frozenset()), PutEntry(5, RouteEntry(5, "0.0.0.0/0", GATEWAY))),
        (replace(NODE, links={WAY.name: replace(OUTER, up=False)}), KERNEL, SetLink(WAY.index, 1500, master=0)),
    ],
)
def test_what_is_missing_is_put_back(node: Observed, kernel: Observed, repair: object) -> None:
    assert [step.operation for step in plan_egress_link(WAY, node, kernel)] == [repair]


def test_a_link_of_another_kernel_is_replaced() -> None:
    steps = plan_egress_link(WAY, replace(NODE, links={WAY.name: replace(OUTER, peer=9)}), KERNEL)
    assert [(step.namespace, step.operation) for step in steps[:2]] == [
        (Namespace.NODE, DeleteLink(WAY.index)),
        (Namespace.KERNEL, DeleteLink(5)),
    ]
    assert isinstance(steps[2].operation, CreateVeth)


def test_an_interface_of_another_kind_is_left_alone() -> None:
    with pytest.raises(NetworkError, match="not ours"):
        plan_egress_link(WAY, Observed(), Observed({OUT_LINK: replace(INNER, kind="dummy")}))


GUARDED = Guarded("retinue-n1", "rteaaaa", frozenset({7}), frozenset({(7, "192.0.2.2"), (7, "2001:db8::2")}))


def test_a_table_is_replaced_in_one_transaction_and_names_no_kernel() -> None:
    text = whole_table(GUARDED)
    lines = text.split("\n")
    assert lines[1:3] == ["add table inet retinue-n1", "delete table inet retinue-n1"]
    assert 'iifname "rteaaaa*" goto refused' in text
    assert "set peers4 { typeof ip saddr . @th,96,24; elements = { 192.0.2.2 . 7 } }" in text
    assert "set peers6 { typeof ip6 saddr . @th,96,24; elements = { 2001:db8::2 . 7 } }" in text
    assert "set fleet { type ipv4_addr;  }" in text
    # Kernels send VXLAN to no port that there may be a node behind.
    ported = whole_table(replace(GUARDED, vxlan_ports=frozenset({14789})))
    assert "set vxlan_ports { type inet_service; elements = { 14789, 4789 } }" in ported


def test_changes_name_what_differs_only() -> None:
    after = replace(
        GUARDED,
        vnis=frozenset({7, 8}),
        peers=frozenset({(8, "192.0.2.2"), (8, "192.0.2.3")}),
        fleet=frozenset({"192.0.2.9"}),
        vxlan_ports=frozenset({4789, 14789}),
    )
    assert set(changes(GUARDED, after).splitlines()) == {
        "add element inet retinue-n1 vxlan_ports { 14789 }",
        "add element inet retinue-n1 vnis { 8 }",
        "add element inet retinue-n1 peers4 { 192.0.2.2 . 8, 192.0.2.3 . 8 }",
        "delete element inet retinue-n1 peers4 { 192.0.2.2 . 7 }",
        "delete element inet retinue-n1 peers6 { 2001:db8::2 . 7 }",
        "add element inet retinue-n1 fleet { 192.0.2.9 }",
    }
    assert changes(GUARDED, GUARDED) == ""


def test_addresses_of_a_listing() -> None:
    listing = "table inet x {\n\tset fleet {\n\t\ttype ipv4_addr\n\t\telements = { 10.0.0.1, 10.0.0.2,\n\t\t\t     10.0.0.3 }\n\t}\n}"
    assert parse_addresses(listing) == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
    assert parse_addresses("table inet x {\n\tset fleet {\n\t\ttype ipv4_addr\n\t}\n}") == frozenset()


def test_chains_that_drop_what_is_forwarded() -> None:
    listing = (
        "table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n"
        "\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n"
        "table inet own {\n\tchain ways {\n\t\ttype filter hook forward priority filter - 10; policy drop;\n\t}\n}\n"
    )
    assert obstacles(listing, "own") == ["ip filter FORWARD"]


def test_a_kernel_of_a_sessions_network_has_no_second_address() -> None:
    link = replace(WAY, session_address="10.128.0.2")
    session = Link(101, "eth0", "veth", "0a:58:0a:80:00:02", 1450, up=True, peer=1002)
    steps = plan_egress_link(link, Observed(), Observed({"lo": LOOPBACK, "eth0": session}))
    created = steps[0].operation
    assert isinstance(created, CreateVeth)
    assert created.peer_index > session.index
    inside = {
        step.operation.entry
        for step in steps
        if isinstance(step.operation, PutEntry) and step.namespace is Namespace.KERNEL
    }
    assert inside == {
        NeighbourEntry(GATEWAY, GATEWAY_MAC),
        RouteEntry(created.peer_index, "0.0.0.0/0", GATEWAY),
    }
    assert plan_egress_link(link, NODE, replace(KERNEL, addresses=frozenset())) == ()
