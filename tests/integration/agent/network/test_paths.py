"""Agents find out whether packets come from the other nodes of a network: real VXLAN, a switch, and packet filters as
firewalls have them.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.agent.network.nodes import Cluster, Node, WorkerError, run, switched_nodes
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCK = """
table inet firewall {
    chain input { type filter hook input priority filter; policy accept; udp dport 4789 drop; }
}
"""


def block(node: Node) -> None:
    """Drops VXLAN that comes to a node, as ufw does by default."""
    run("ip", "netns", "exec", node.name, "nft", BLOCK)


def unblock(node: Node) -> None:
    run("ip", "netns", "exec", node.name, "nft", "delete table inet firewall")


@asynccontextmanager
async def followed(nodes: list[Node], vni: int, old: Iterable[str] = ()) -> AsyncIterator[Cluster]:
    """A session with a kernel on each node, whose paths are proved."""
    cluster = Cluster(nodes, vni)
    cluster.old |= set(old)
    async with cluster.up():
        for node in nodes:
            await node.call("follow", cluster.network(node))
        try:
            yield cluster
        finally:
            for node in nodes:
                await node.call("forget", cluster.session_id)


async def report(node: Node, cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = await node.call("paths", cluster.session_id)
    return found


async def proved(node: Node, cluster: Cluster) -> None:
    await eventually(lambda: report(node, cluster), lambda found: found["proved"] and not found["faulty"])


async def messages(node: Node, cluster: Cluster, senders: set[str]) -> dict[str, str]:
    """What the node says of its paths, once it says something of those from `senders` and of no others."""

    def told(found: dict[str, Any]) -> bool:
        return {fault["agent_id"] for fault in found["faulty"]} == senders

    found = await eventually(lambda: report(node, cluster), told)
    return {fault["agent_id"]: fault["message"] for fault in found["faulty"]}


async def test_a_firewall_on_one_node_is_found_by_that_node_alone() -> None:
    async with switched_nodes(3) as (_, nodes), followed(nodes, vni=4401) as cluster:
        one, two, three = nodes
        for node in nodes:
            await proved(node, cluster)
        block(one)
        told = await messages(one, cluster, {"n2", "n3"})
        assert told["n2"] == (
            "n1 gets nothing from n2: small packets 0 of 5, packets of 1,450 bytes 0 of 5; "
            "is UDP port 4789 open on n1 for 192.0.2.2?"
        )
        assert not (await report(one, cluster))["proved"]
        # What they send is lost, and what they get is not.
        for other in (two, three):
            assert await report(other, cluster) == {"proved": True, "faulty": []}
        unblock(one)
        await proved(one, cluster)


async def test_a_firewall_from_the_start_is_found() -> None:
    async with switched_nodes(2) as (_, nodes):
        one, two = nodes
        block(two)
        async with followed(nodes, vni=4402) as cluster:
            await proved(one, cluster)
            assert not (await report(two, cluster))["proved"]
            assert set(await messages(two, cluster, {"n1"})) == {"n1"}
            unblock(two)
            await proved(two, cluster)


async def test_a_smaller_mtu_on_the_way_is_found_and_measured() -> None:
    async with switched_nodes(2) as (switch, nodes), followed(nodes, vni=4403) as cluster:
        one, two = nodes
        for node in nodes:
            await proved(node, cluster)
        # A port drops longer packets without a word. It lets the four bytes of a VLAN's tag pass beyond its MTU.
        for port in ("p0", "p1"):
            run("ip", "-n", switch, "link", "set", port, "mtu", "1396")
        told = [await messages(one, cluster, {"n2"}), await messages(two, cluster, {"n1"})]
        assert told[0]["n2"] == (
            "n1 gets no packets of 1,450 bytes from n2, and gets those of 1,350: the network between the nodes carries "
            "1,400 bytes, less than the 1,500 that its interfaces say; let it carry more, or start the agents with "
            "--underlay-mtu 1400"
        )
        assert told[1]["n1"].startswith("n2 gets no packets of 1,450 bytes from n1, and gets those of 1,350:")
        for port in ("p0", "p1"):
            run("ip", "-n", switch, "link", "set", port, "mtu", "1500")
        for node in nodes:
            await proved(node, cluster)


async def test_linux_answers_for_an_agent_that_does_not_run() -> None:
    async with switched_nodes(2) as (_, nodes), followed(nodes, vni=4404) as cluster:
        one, two = nodes
        await two.call("forget", cluster.session_id)
        # As after a restart of this agent: it has to be proved again.
        await one.call("forget", cluster.session_id)
        await one.call("follow", cluster.network(one))
        await proved(one, cluster)


async def test_a_node_without_answers_holds_up_nothing_if_its_agent_is_old() -> None:
    async with switched_nodes(2) as (_, nodes):
        one, two = nodes
        block(one)
        async with followed(nodes, vni=4405, old={"n2"}) as cluster:
            told = await messages(one, cluster, {"n2"})
            assert (
                told["n2"] == "n1 cannot prove that packets come from n2: the agent there is too old to answer probes"
            )
            assert (await report(one, cluster))["proved"]
            unblock(one)
            await proved(one, cluster)
            await proved(two, cluster)


async def test_a_network_that_is_made_again_is_proved_again() -> None:
    async with switched_nodes(2) as (_, nodes), followed(nodes, vni=4406) as cluster:
        one, two = nodes
        await proved(one, cluster)
        name = await one.call("namespace", cluster.session_id)
        before = await one.call("descriptors")
        for damage in (
            "ip link del p0",
            "ip link del br0",
            "ip link set probe0 down",
            "ip neigh flush dev probe0 nud permanent",
        ):
            command = damage.split()
            run(command[0], "-n", name, *command[1:])
            assert await one.call("ensure", cluster.network(one)) > 0, damage
            assert await one.call("ensure", cluster.network(one)) == 0, damage
        run("ip", "netns", "del", name)
        await one.call("release", cluster.session_id)
        # Linux takes the old one's VXLAN device away a moment later.
        await eventually(lambda: one.call("ensure", cluster.network(one)), ignoring=WorkerError)
        await one.call("follow", cluster.network(one))
        # With what was there no packet comes any more: what is proved is the new namespace.
        await proved(two, cluster)
        block(two)
        await messages(two, cluster, {"n1"})
        unblock(two)
        await proved(two, cluster)
        await eventually(lambda: one.call("descriptors"), lambda found: found <= before)
        await one.call("forget", cluster.session_id)
        await eventually(lambda: one.call("descriptors"), lambda found: found < before)


async def test_kernels_neither_see_probes_nor_forge_them() -> None:
    async with switched_nodes(2) as (_, nodes), followed(nodes, vni=4407) as cluster:
        one, _ = nodes
        block(one)
        await messages(one, cluster, {"n2"})
        own, _other = cluster.kernels
        # A kernel with every right in its own namespace: it sends answers in the other node's name.
        script = (
            "import socket, sys\n"
            "sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x800))\n"
            "sender.bind(('eth0', 0))\n"
            "target, source = bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2])\n"
            "head = bytes.fromhex('4500001c000040004001') + bytes(2) + socket.inet_aton(sys.argv[3]) + socket.inet_aton(sys.argv[4])\n"
            "total = sum(int.from_bytes(head[i:i + 2], 'big') for i in range(0, 20, 2))\n"
            "total = (total & 0xffff) + (total >> 16)\n"
            "head = head[:10] + (~((total & 0xffff) + (total >> 16)) & 0xffff).to_bytes(2, 'big') + head[12:]\n"
            "for _ in range(2000):\n"
            "    sender.send(target + source + b'\\x08\\x00' + head + bytes.fromhex('0000ffff00000000'))\n"
        )
        mac = own.member.mac.replace(":", "")
        await asyncio.to_thread(
            run,
            "ip",
            "netns",
            "exec",
            own.namespace,
            "python3",
            "-c",
            script,
            "0e5aa9fe8001",
            mac,
            "169.254.128.2",
            "169.254.128.1",
        )
        found = await report(one, cluster)
        assert [fault["agent_id"] for fault in found["faulty"]] == ["n2"]
        unblock(one)
        await proved(one, cluster)
