"""What becomes of a kernel's packets on nodes whose firewalls are written as ufw, firewalld and Docker write them."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.devtools.node_network import EgressPath, VxlanPort, try_egress, try_vxlan_port
from tests.integration.agent.network.nodes import inside, link_names, namespace, run
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it makes network namespaces")

LET_PASS = 'iifname "rte*" accept; oifname "rte*" ct state established,related accept;'
UFW = """
table ip filter {{
    chain ufw-before-forward {{
        ct state related,established accept
        icmp type echo-request accept
    }}
    chain ufw-reject-forward {{
        {reject}
    }}
    chain FORWARD {{
        type filter hook forward priority filter; policy drop;
        {allow}
        jump ufw-before-forward
        jump ufw-reject-forward
    }}
}}
"""
FIREWALLD = """
table inet firewalld {{
    chain filter_FORWARD {{
        type filter hook forward priority filter + 10; policy accept;
        ct state established,related accept
        ct status dnat accept
        iifname "lo" accept
        {allow}
        ct state invalid drop
        {reject}
    }}
}}
"""
DOCKER = """*filter
:FORWARD DROP [0:0]
:DOCKER-USER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
{allow}-A DOCKER-USER -j RETURN
COMMIT
"""
DOCKER_LET_PASS = "-A DOCKER-USER -i rte+ -j ACCEPT\n-A DOCKER-USER -o rte+ -j ACCEPT\n"
DROPPED = (("TCP", "dropped"), ("UDP", "dropped"))
REFUSED = (("TCP", "refused"), ("UDP", "refused"))


@pytest.fixture
def node() -> Iterator[str]:
    """A node with an uplink, and a way to the outside by it."""
    with namespace("node") as name, namespace("outside") as outside:
        run("ip", "link", "add", "up0", "netns", name, "type", "veth", "peer", "up0", "netns", outside)
        run("ip", "-n", name, "addr", "add", "198.51.100.2/24", "dev", "up0")
        run("ip", "-n", name, "link", "set", "lo", "up")
        for end in (name, outside):
            run("ip", "-n", end, "link", "set", "up0", "up")
        run("ip", "-n", name, "route", "add", "default", "via", "198.51.100.1")
        set_forwarding(name, "1")
        before = tables(name)
        yield name
        assert link_names(name) == {"lo", "up0"}
        assert not [table for table in tables(name) - before if "retinue" in table]


def set_forwarding(node: str, value: str) -> None:
    inside(node, lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text(value))


def tables(node: str) -> set[str]:
    return set(run("ip", "netns", "exec", node, "nft", "list", "tables").splitlines())


def apply(node: str, program: tuple[str, ...], rules: str) -> None:
    command = ["ip", "netns", "exec", node, *program]
    subprocess.run(command, input=rules, text=True, check=True, timeout=NEVER)


def test_a_plain_node_lets_kernels_out(node: str) -> None:
    assert inside(node, try_egress) == EgressPath("", "up0")


@pytest.mark.parametrize(
    ("program", "rules", "blocked"),
    [
        (("nft", "-f", "-"), UFW.format(allow="", reject=""), DROPPED),
        (("nft", "-f", "-"), UFW.format(allow="", reject="reject"), REFUSED),
        (("nft", "-f", "-"), FIREWALLD.format(allow="", reject="reject with icmpx type admin-prohibited"), REFUSED),
        (("nft", "-f", "-"), FIREWALLD.format(allow="meta l4proto tcp accept", reject="drop"), DROPPED[1:]),
        (("iptables-legacy-restore",), DOCKER.format(allow=""), DROPPED),
        (("iptables-nft-restore",), DOCKER.format(allow=""), DROPPED),
    ],
    ids=["ufw", "ufw-reject", "firewalld", "firewalld-tcp-only", "docker-legacy", "docker-nft"],
)
def test_what_a_firewall_keeps_in_is_said(
    node: str, program: tuple[str, ...], rules: str, blocked: tuple[tuple[str, str], ...]
) -> None:
    apply(node, program, rules)
    assert inside(node, try_egress) == EgressPath("", "up0", blocked)


@pytest.mark.parametrize(
    ("program", "rules"),
    [
        (("nft", "-f", "-"), UFW.format(allow=LET_PASS, reject="reject")),
        (("nft", "-f", "-"), FIREWALLD.format(allow=LET_PASS, reject="reject with icmpx type admin-prohibited")),
        (("iptables-legacy-restore",), DOCKER.format(allow=DOCKER_LET_PASS)),
        (("iptables-nft-restore",), DOCKER.format(allow=DOCKER_LET_PASS)),
        (("nft", "-f", "-"), "table ip x { chain f { type filter hook forward priority 0; policy accept; }; }"),
    ],
    ids=["ufw", "firewalld", "docker-legacy", "docker-nft", "accepting"],
)
def test_what_a_firewall_lets_pass_is_no_obstacle(node: str, program: tuple[str, ...], rules: str) -> None:
    apply(node, program, rules)
    assert inside(node, try_egress) == EgressPath("", "up0")


def test_a_node_that_does_not_forward_says_so_and_is_left_as_it_is(node: str) -> None:
    set_forwarding(node, "0")
    assert inside(node, try_egress) == EgressPath("", "up0", forwards=False, takes_answers=False)
    assert inside(node, lambda: Path("/proc/sys/net/ipv4/ip_forward").read_text()) == "0\n"


def test_a_node_without_a_egress_says_so(node: str) -> None:
    run("ip", "-n", node, "route", "del", "default")
    assert inside(node, try_egress).problem == "there is no route to the outside"


def test_tables_of_a_doctor_that_was_killed_go_with_the_next(node: str) -> None:
    # No process has this number.
    apply(node, ("nft", "-f", "-"), "table inet retinue-doctor-99999999 { }")
    assert inside(node, try_egress) == EgressPath("", "up0")
    assert not [table for table in tables(node) if "doctor" in table]


def test_who_has_the_port_of_vxlan_is_named(node: str) -> None:
    assert inside(node, lambda: try_vxlan_port(4789)) == VxlanPort(4789)
    run("ip", "-n", node, "link", "add", "ovs0", "up", "type", "vxlan", "external", "dstport", "4789")
    try:
        assert inside(node, lambda: try_vxlan_port(4789)) == VxlanPort(4789, False, ("the VXLAN device ovs0",))
        assert inside(node, lambda: try_vxlan_port(14789)) == VxlanPort(14789)
    finally:
        run("ip", "-n", node, "link", "del", "ovs0")
    with closing(inside(node, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))) as taken:
        taken.bind(("0.0.0.0", 8472))  # noqa: S104  # in a namespace
        found = inside(node, lambda: try_vxlan_port(8472))
    assert not found.usable
    assert [holder.endswith(f"(process {os.getpid()})") for holder in found.holders] == [True]


def test_a_port_that_sessions_have_can_be_shared(node: str) -> None:
    run("ip", "-n", node, "link", "add", "vx7", "up", "type", "vxlan", "id", "7", "dstport", "4789", "nolearning")
    try:
        assert inside(node, lambda: try_vxlan_port(4789)) == VxlanPort(4789)
    finally:
        run("ip", "-n", node, "link", "del", "vx7")
