"""What passes between kernels, and what does not: real namespaces, real VXLAN, two nodes on this machine."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.integration.agent.network.nodes import (
    Cluster,
    Kernel,
    Node,
    Tap,
    arp_request,
    exchange,
    inside,
    is_vxlan,
    link_names,
    mac_bytes,
    plain_frame,
    run,
    switched_nodes,
    two_nodes,
)
from tests.support.eventually import NEVER, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
IP_AND_UDP_HEADERS = 28


async def test_tcp_between_all_pairs_on_one_node_and_across(pair: tuple[Node, Node]) -> None:
    one, two = pair
    payload = bytes(range(256)) * 1024
    async with Cluster([one, one, two, two], vni=4001).up() as cluster:
        for client, server in itertools.permutations(cluster.kernels, 2):
            received, seen = await asyncio.to_thread(exchange, client, server, payload)
            assert received == payload[::-1]
            assert seen == client.member.address


async def test_a_session_on_one_node_has_a_bridge_and_no_vxlan(pair: tuple[Node, Node]) -> None:
    one, _ = pair
    async with Cluster([one, one, one], vni=0).up() as cluster:
        assert link_names(await one.call("namespace", cluster.session_id)) == {"lo", "br0", "k2", "k3", "k4"}
        for client, server in itertools.permutations(cluster.kernels, 2):
            assert (await asyncio.to_thread(exchange, client, server, b"hello"))[0] == b"olleh"


async def test_vxlan_over_ipv6() -> None:
    async with two_nodes(version=6) as (one, two), Cluster([one, two], vni=4002, mtu=1430).up() as cluster:
        assert await one.call("ensure", cluster.network(one)) == 0
        main, sub = cluster.kernels
        assert (await asyncio.to_thread(exchange, main, sub, b"hello"))[0] == b"olleh"


def passed(sender: socket.socket, receiver: socket.socket, address: tuple[str, int], data: bytes) -> int:
    """Sends a datagram and returns how much has come; a link that has just come up may lose it."""
    sender.sendto(data, address)
    return len(receiver.recv(65536))


async def test_a_full_packet_passes_whole_and_a_longer_one_is_refused(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with Cluster([one, one, two], vni=4003).up() as cluster:
        first = cluster.kernels[0]
        for other in cluster.kernels[1:]:
            with other.open(socket.SOCK_DGRAM) as receiver, first.open(socket.SOCK_DGRAM) as sender:
                receiver.bind((other.member.address, 7001))
                sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
                largest = cluster.mtu - IP_AND_UDP_HEADERS
                receiver.setblocking(False)
                address = (other.member.address, 7001)
                arrived = partial(passed, sender, receiver, address, b"x" * largest)
                assert await eventually(arrived, ignoring=BlockingIOError) == largest
                with pytest.raises(OSError, match="too long") as refusal:
                    sender.sendto(b"x" * (largest + 1), address)
                assert refusal.value.errno == errno.EMSGSIZE


async def test_nothing_is_flooded_to_other_nodes(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with Cluster([one, one, two], vni=4004).up() as cluster:
        main, neighbour, remote = cluster.kernels
        with (
            Tap(one.name, "up0") as underlay,
            Tap(main.namespace, "eth0") as own,
            Tap(neighbour.namespace, "eth0") as next_to,
        ):
            # Broadcast, to a group, and to an unknown receiver.
            own.send(arp_request(main.member, "10.128.0.13"))
            for destination in ("ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:fb", "33:33:00:00:00:01", "0a:58:0a:80:00:0d"):
                own.send(plain_frame(destination, main.member.mac, b"flood"))
            own.send(plain_frame("ff:ff:ff:ff:ff:ff", main.member.mac, b"last one"))
            await next_to.frame(lambda frame: b"last one" in frame)
            # The bridge answers for a kernel on the other node.
            own.send(arp_request(main.member, remote.member.address))
            answer = await own.frame(lambda frame: frame[12:14] == b"\x08\x06" and frame[20:22] == b"\x00\x02")
            assert answer[22:28] == mac_bytes(remote.member.mac)
            assert not [frame for frame in underlay.frames() if is_vxlan(frame)]
            # What is meant for the other node goes there: the tap would have seen the rest.
            own.send(plain_frame(remote.member.mac, main.member.mac, b"to you"))
            assert is_vxlan(await underlay.frame(lambda frame: b"to you" in frame))


async def test_the_underlay_of_three_nodes_carries_what_is_meant_for_one_node_only() -> None:
    """Once the nodes know each other, nothing on any of their links goes to all, or to another node."""
    async with (
        switched_nodes(3) as (switch, nodes),
        Cluster([*nodes, *nodes], vni=4009).up() as left,
        Cluster(nodes, vni=4010).up() as right,
    ):

        def talk() -> None:
            for cluster in (left, right):
                for client, server in itertools.permutations(cluster.kernels, 2):
                    assert exchange(client, server, b"hello")[0] == b"olleh"

        # The nodes' own addresses are found out by ARP, as on every network: that is not ours.
        await asyncio.to_thread(talk)
        with ExitStack() as stack:
            taps = [stack.enter_context(Tap(switch, f"p{number}")) for number in range(len(nodes))]
            await asyncio.to_thread(talk)
            for cluster in (left, right):
                for kernel in cluster.kernels:
                    with Tap(kernel.namespace, "eth0") as own:
                        own.send(arp_request(kernel.member, "10.128.0.13"))
                        own.send(plain_frame("ff:ff:ff:ff:ff:ff", kernel.member.mac, b"to all"))
                        own.send(plain_frame("0a:58:0a:80:00:0d", kernel.member.mac, b"unknown receiver"))
            await asyncio.to_thread(talk)
            known = {uplink_mac(node.name) for node in nodes}
            for tap in taps:
                carried = [frame for frame in tap.frames() if is_vxlan(frame)]
                assert len(carried) > len(left.kernels)
                assert {frame[:6] for frame in carried} <= known
                # Nor is anything inside meant for all: 50 bytes are the outer headers.
                assert not [frame for frame in carried if frame[50] & 1 or b"unknown receiver" in frame]


async def test_unknown_addresses_are_not_flooded_on_the_node_either(pair: tuple[Node, Node]) -> None:
    one, _ = pair
    async with Cluster([one, one], vni=0).up() as cluster:
        main, other = cluster.kernels
        with Tap(main.namespace, "eth0") as own, Tap(other.namespace, "eth0") as next_to:
            own.send(plain_frame("0a:58:0a:80:00:0d", main.member.mac, b"unknown receiver"))
            own.send(plain_frame(other.member.mac, main.member.mac, b"to you"))
            seen = await next_to.until(b"to you")
            assert not [frame for frame in seen if b"unknown receiver" in frame]


@pytest.mark.attack("forged-frames")
async def test_a_kernel_cannot_speak_with_the_mac_of_another(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with Cluster([one, one, two], vni=4005).up() as cluster:
        main, other, remote = cluster.kernels
        with Tap(main.namespace, "eth0") as own, Tap(other.namespace, "eth0") as next_to:
            for false in (remote.member.mac, "0a:58:0a:80:00:0d"):
                own.send(plain_frame(other.member.mac, false, b"spoofed"))
            own.send(plain_frame(other.member.mac, main.member.mac, b"honest"))
            seen = await next_to.until(b"honest")
            assert not [frame for frame in seen if b"spoofed" in frame]
        # No bridge learned the false port.
        assert (await asyncio.to_thread(exchange, other, remote, b"hello"))[0] == b"olleh"


@pytest.mark.attack("other-sessions")
async def test_two_sessions_with_the_same_addresses_do_not_meet(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with (
        Cluster([one, two, one], vni=4006).up() as left,
        Cluster([one, two, two], vni=4007).up() as right,
    ):

        def serve(kernel: Kernel) -> socket.socket:
            listener = kernel.open(socket.SOCK_STREAM)
            listener.bind((kernel.member.address, 7002))
            listener.listen()
            return listener

        def greet(kernel: Kernel, listener: socket.socket, address: str) -> bool:
            """Whether the listener is who one gets to at the address."""
            with kernel.open(socket.SOCK_STREAM) as client:
                client.connect((address, 7002))
                listener.settimeout(NEVER)
                connection, seen = listener.accept()
                with connection:
                    return bool(seen == client.getsockname())

        with serve(left.kernels[1]) as left_listener, serve(right.kernels[1]) as right_listener:
            address = left.kernels[1].member.address
            assert address == right.kernels[1].member.address
            assert await asyncio.to_thread(greet, left.kernels[0], left_listener, address)
            assert await asyncio.to_thread(greet, right.kernels[0], right_listener, address)
        with Tap(right.kernels[1].namespace, "eth0") as other, Tap(left.kernels[0].namespace, "eth0") as own:
            own.send(plain_frame("ff:ff:ff:ff:ff:ff", left.kernels[0].member.mac, b"hello"))
            own.send(plain_frame(right.kernels[1].member.mac, left.kernels[0].member.mac, b"hello"))
            with Tap(right.kernels[0].namespace, "eth0") as honest:
                honest.send(plain_frame(right.kernels[1].member.mac, right.kernels[0].member.mac, b"own"))
            seen = await other.until(b"own")
            assert not [frame for frame in seen if b"hello" in frame]


async def test_a_kernel_reaches_neither_its_node_nor_the_underlay(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with Cluster([one, two], vni=4008).up() as cluster:
        for address in (one.address, two.address):
            with cluster.kernels[0].open(socket.SOCK_DGRAM) as sender, pytest.raises(OSError, match="unreachable"):
                sender.sendto(b"x", (address, 4789))
        run("ip", "-n", cluster.kernels[0].namespace, "route", "add", "default", "dev", "eth0")
        with Tap(one.name, "up0") as underlay, Tap(cluster.kernels[0].namespace, "eth0") as own:
            own.send(arp_request(cluster.kernels[0].member, two.address))
            own.send(plain_frame(cluster.kernels[1].member.mac, cluster.kernels[0].member.mac, b"marker"))
            seen = await underlay.until(b"marker")
            # The node itself may speak there; of the kernel there is the marker and nothing else.
            assert len([frame for frame in seen if mac_bytes(cluster.kernels[0].member.mac) in frame]) == 1


async def test_a_kernel_has_its_loopback_and_no_ipv6_on_its_interface(pair: tuple[Node, Node]) -> None:
    one, _ = pair
    async with Cluster([one, one], vni=0).up() as cluster:
        kernel = cluster.kernels[0]
        with kernel.open(socket.SOCK_STREAM, family=socket.AF_INET6) as listener:
            listener.bind(("::1", 0))
        addresses = inside(kernel.namespace, Path("/proc/thread-self/net/if_inet6").read_text)
        assert addresses.split()[-1] == "lo"
        assert len(addresses.splitlines()) == 1


def uplink_mac(name: str) -> bytes:
    words = run("ip", "-n", name, "-o", "link", "show", "dev", "up0").split()
    return mac_bytes(words[words.index("link/ether") + 1])
