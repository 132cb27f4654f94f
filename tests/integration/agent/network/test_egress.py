"""Egress of kernels: where they lead, where they never do, and that they survive what happens to agents and rules."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from retinue.agent.network.rules_guard import KERNELS_TO_FILL, TRACKED
from retinue.manager.domain.session.ipam import inner_mtu
from tests.integration.agent.network.nodes import (
    Cluster,
    Node,
    Tap,
    WorkerError,
    inside,
    link_names,
    mac_bytes,
    namespace,
    plain_frame,
    run,
    switched_nodes,
    two_nodes,
    worker,
)
from tests.integration.agent.network.outside import (
    METADATA,
    NEIGHBOUR,
    NODE_OUTSIDE,
    OTHER_PUBLIC,
    PRIVATE,
    PUBLIC,
    ROUTER,
    SESSION_ADDRESS,
    datagram,
    ears,
    heard,
    networked_outgoer,
    outgoer,
    vxlan,
    world,
)
from tests.support.eventually import NEVER

END = b"the last one"


async def test_a_kernel_reaches_the_outside_with_its_nodes_address() -> None:
    async with world() as place, outgoer(place.node) as kernel:

        def talk() -> tuple[bytes, str]:
            listener = inside(place.outside, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            with listener, kernel.open(socket.SOCK_STREAM) as client:
                listener.bind((PUBLIC, 7000))
                listener.listen()
                listener.settimeout(NEVER)
                client.connect((PUBLIC, 7000))
                connection, (seen, _) = listener.accept()
                with connection:
                    connection.sendall(b"hello")
                    return client.recv(100), seen

        assert await asyncio.to_thread(talk) == (b"hello", NODE_OUTSIDE)
        # A second time there is nothing to do.
        assert await place.node.call("ensure_egress", kernel.attempt_id, kernel.path) == 0


@pytest.mark.attack("platform-from-a-kernel")
async def test_no_protected_address_is_reached() -> None:
    async with world() as place, outgoer(place.node) as kernel, outgoer(place.node) as other:
        await place.node.call("protect", [OTHER_PUBLIC])
        forbidden = [
            "192.0.2.1",
            NODE_OUTSIDE,
            NEIGHBOUR,
            ROUTER,
            OTHER_PUBLIC,
            PRIVATE,
            METADATA,
            "169.254.1.1",
            other.address,
            "203.0.113.255",
            "255.255.255.255",
            "224.0.0.1",
        ]
        with (
            ears(place.outside, PUBLIC, 7000, 4789) as (ear, tunnel),
            Tap(place.outside, "wan0") as outside,
            Tap(place.neighbour, "up0") as underlay,
            ears(place.node.name, "", 7000, 4789, 22) as own,
            ears(other.namespace, "", 7000) as (next_to,),
        ):
            for address in forbidden:
                for port in (22, 53, 4789, 7000):
                    kernel.say(address, port, b"forbidden")
            kernel.say(PUBLIC, 4789, b"forbidden")
            kernel.say(PUBLIC, 7000, END)
            assert await asyncio.to_thread(ear.recv, 65536) == END
            for listener in (tunnel, next_to, *own):
                assert not heard(listener)
            for tap in (outside, underlay):
                assert not [frame for frame in tap.frames() if b"forbidden" in frame]


async def test_no_host_and_no_process_of_the_node_reaches_a_kernel_by_its_egress_link() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        run("ip", "-n", place.outside, "route", "add", kernel.address, "via", NODE_OUTSIDE)
        with ears(kernel.namespace, "", 7000) as (ear,), kernel.tap() as tap:
            for name in (place.outside, place.node.name):
                with inside(name, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
                    try:
                        sender.sendto(b"unasked", (kernel.address, 7000))
                    except PermissionError:
                        assert name == place.node.name
            # What is asked for comes.
            with ears(place.outside, PUBLIC, 7000) as (public,), kernel.open(socket.SOCK_DGRAM) as asking:
                asking.sendto(b"question", (PUBLIC, 7000))
                _, peer = await asyncio.to_thread(public.recvfrom, 100)
                public.sendto(b"answer", peer)
                assert await asyncio.to_thread(asking.recv, 100) == b"answer"
            assert not heard(ear)
            assert not [frame for frame in tap.frames() if b"unasked" in frame]


@pytest.mark.attack("forged-frames")
async def test_a_kernel_speaks_with_its_own_address_only() -> None:
    async with world() as place, outgoer(place.node) as kernel, outgoer(place.node) as other:
        with (
            kernel.tap() as tap,
            Tap(place.outside, "wan0") as outside,
            ears(place.outside, PUBLIC, 7000) as (ear,),
        ):
            gateway, own = mac_bytes("0e:59:00:00:00:01"), tap_mac(kernel.namespace)
            for false in (other.address, "192.0.2.1", NODE_OUTSIDE, PUBLIC, "8.8.8.8", "127.0.0.1"):
                tap.send(datagram(false, PUBLIC, own, gateway, b"spoofed"))
            # To claim the other's address changes nothing either.
            arp = b"\x00\x01\x08\x00\x06\x04\x00\x02" + own + socket.inet_aton(other.address)
            tap.send(
                (b"\xff" * 6 + own + b"\x08\x06" + arp + gateway + socket.inet_aton("169.254.1.1")).ljust(60, b"\0")
            )
            other.say(PUBLIC, 7000, b"honest")
            assert await asyncio.to_thread(ear.recv, 100) == b"honest"
            kernel.say(PUBLIC, 7000, END)
            assert await asyncio.to_thread(ear.recv, 100) == END
            assert not [frame for frame in outside.frames() if b"spoofed" in frame]


async def test_what_the_administrator_allows() -> None:
    async with world(allowed=["10.9.0.0/16"]) as place, outgoer(place.node) as kernel:
        with ears(place.outside, PRIVATE, 7000) as (ear,), Tap(place.outside, "wan0") as outside:
            kernel.say(PRIVATE, 7000, b"allowed")
            assert await asyncio.to_thread(ear.recv, 100) == b"allowed"
            # A node is out of reach even there.
            await place.node.call("protect", [PRIVATE])
            kernel.say(PRIVATE, 7000, b"forbidden")
            with ears(place.outside, PUBLIC, 7000) as (public,):
                kernel.say(PUBLIC, 7000, END)
                assert await asyncio.to_thread(public.recv, 100) == END
            assert not [frame for frame in outside.frames() if b"forbidden" in frame]


async def test_name_servers_answer_for_names_only() -> None:
    async with world(name_servers=[PRIVATE, ROUTER]) as place, outgoer(place.node) as kernel:
        with ears(place.outside, PRIVATE, 53, 54) as (names, other), ears(place.outside, ROUTER, 53) as (router,):
            kernel.say(PRIVATE, 54, b"forbidden")
            kernel.say(PRIVATE, 53, b"a question")
            assert await asyncio.to_thread(names.recv, 100) == b"a question"
            kernel.say(ROUTER, 53, b"another")
            assert await asyncio.to_thread(router.recv, 100) == b"another"
            assert not heard(other)


async def test_other_name_servers_of_the_node_are_followed() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        with ears(place.outside, PRIVATE, 53) as (early,), ears(place.outside, ROUTER, 53) as (late,):
            await place.node.call("resolv.conf", f"nameserver {PRIVATE}\n")
            kernel.say(PRIVATE, 53, b"a question")
            assert await asyncio.to_thread(early.recv, 100) == b"a question"
            await place.node.call("resolv.conf", f"nameserver {ROUTER}\n")
            kernel.say(PRIVATE, 53, b"forbidden")
            # A file that is being written names none.
            await place.node.call("resolv.conf", "")
            kernel.say(ROUTER, 53, b"another")
            assert await asyncio.to_thread(late.recv, 100) == b"another"
            assert not heard(early)


async def test_a_kernel_of_a_sessions_network_has_one_address() -> None:
    async with world() as place, networked_outgoer(place.node) as kernel:

        def talk() -> tuple[bytes, str, str]:
            listener = inside(place.outside, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            with listener, kernel.open(socket.SOCK_STREAM) as client:
                listener.bind((PUBLIC, 7000))
                listener.listen()
                listener.settimeout(NEVER)
                client.connect((PUBLIC, 7000))
                connection, (seen, _) = listener.accept()
                with connection:
                    connection.sendall(b"hello")
                    return client.recv(100), client.getsockname()[0], seen

        assert await asyncio.to_thread(talk) == (b"hello", SESSION_ADDRESS, NODE_OUTSIDE)
        listing = run("ip", "-n", kernel.namespace, "-4", "-o", "addr", "show", "scope", "global")
        assert [line.split()[3] for line in listing.splitlines()] == [f"{SESSION_ADDRESS}/28"]


async def test_a_kernel_of_a_sessions_network_is_reached_from_inside_as_routers_reach_it() -> None:
    """So do probes and the reading of metrics connect."""
    async with world() as place, networked_outgoer(place.node) as kernel:
        routes = run("ip", "-n", place.node.name, "-4", "-o", "route").splitlines()
        (address,) = (route.split()[0] for route in routes if route.startswith("198."))

        def talk() -> str:
            with kernel.open(socket.SOCK_STREAM) as listener, kernel.open(socket.SOCK_STREAM) as client:
                listener.bind(("0.0.0.0", 7000))  # noqa: S104  # as programs have to
                listener.listen()
                listener.settimeout(NEVER)
                client.connect((address, 7000))
                connection, (seen, _) = listener.accept()
                connection.close()
                return str(seen)

        assert await asyncio.to_thread(talk) == SESSION_ADDRESS


async def test_a_forbidden_address_refuses_at_once() -> None:
    async with world() as place, outgoer(place.node) as kernel, outgoer(place.node) as other:
        for address in (NODE_OUTSIDE, NEIGHBOUR, PRIVATE, METADATA, other.address):
            with kernel.open(socket.SOCK_STREAM) as client, pytest.raises(ConnectionRefusedError):
                await asyncio.to_thread(client.connect, (address, 7000))
            with kernel.open(socket.SOCK_DGRAM) as asking:
                asking.connect((address, 7000))
                asking.send(b"question")
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.to_thread(asking.recv, 100)


@pytest.mark.attack("connection-tracking")
async def test_a_kernel_takes_a_part_of_the_connections_that_a_node_tracks() -> None:
    """One that opens ever more is refused, and others go on."""
    async with world() as place, outgoer(place.node) as kernel, outgoer(place.node) as other:
        bound = int(TRACKED.read_text()) // KERNELS_TO_FILL
        await place.node.call("look_closely")

        def open_many() -> None:
            with kernel.open(socket.SOCK_DGRAM) as greedy:
                for number in range(2 * bound):
                    # What is refused is the answer to one before it.
                    with contextlib.suppress(ConnectionRefusedError):
                        greedy.sendto(b"x", (PUBLIC, 1024 + number % 60_000))
                with kernel.open(socket.SOCK_STREAM) as one_more, pytest.raises(ConnectionRefusedError):
                    one_more.connect((OTHER_PUBLIC, 7000))

        # On a busy machine, the first ones would be forgotten before the last ones are opened.
        timeout = TRACKED.with_name("nf_conntrack_udp_timeout")
        inside(place.node.name, lambda: timeout.write_text(f"{2 * NEVER:.0f}"))
        await asyncio.to_thread(open_many)
        tracked = inside(place.node.name, lambda: int(TRACKED.with_name("nf_conntrack_count").read_text()))
        assert bound - 100 < tracked < bound + 100
        with ears(place.outside, OTHER_PUBLIC, 7000) as (ear,):
            other.say(OTHER_PUBLIC, 7000, END)
            assert await asyncio.to_thread(ear.recv, 100) == END
        # What Linux counts by itself is no change of the rules.
        assert await place.node.call("look_closely")


async def test_the_network_of_the_node_itself_may_be_allowed() -> None:
    async with world(allowed=[f"{ROUTER}/32", "192.0.2.0/24"]) as place, outgoer(place.node) as kernel:
        with ears(place.outside, ROUTER, 7000) as (ear,), ears(place.node.name, "", 7000) as (own,):
            kernel.say("192.0.2.1", 7000, b"forbidden")
            kernel.say("192.0.2.255", 7000, b"forbidden")
            kernel.say(ROUTER, 7000, b"allowed")
            assert await asyncio.to_thread(ear.recv, 100) == b"allowed"
            assert not heard(own)
            with ears(place.neighbour, NEIGHBOUR, 7000) as (beside,):
                kernel.say(NEIGHBOUR, 7000, b"allowed, too")
                assert await asyncio.to_thread(beside.recv, 100) == b"allowed, too"
                # Nodes stay out of reach.
                await place.node.call("protect", [NEIGHBOUR])
                kernel.say(NEIGHBOUR, 7000, b"forbidden")
                kernel.say(ROUTER, 7000, END)
                assert await asyncio.to_thread(ear.recv, 100) == END
                assert not heard(beside)


async def test_rules_that_others_remove_come_back() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        assert await place.node.call("look") is True
        run("ip", "netns", "exec", place.node.name, "nft", "flush", "ruleset")
        assert await place.node.call("look") is False
        table = tables(place.node.name)[0]
        run("ip", "netns", "exec", place.node.name, "nft", "flush", "chain", "inet", table, "outward")
        assert await place.node.call("look") is False
        assert await place.node.call("look") is True
        with ears(place.outside, PUBLIC, 7000) as (ear,):
            kernel.say(PUBLIC, 7000, b"still")
            assert await asyncio.to_thread(ear.recv, 100) == b"still"


async def test_egress_survives_the_agent_and_goes_with_the_kernel() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        agent = f"test-again-{place.outside[-8:]}"
        with namespace("k") as other:
            path = f"/run/netns/{other}"
            async with worker(place.node.name, place.node.address, agent) as first:
                await first.call("ensure_egress", "kept.1", path)
                await first.call("protect", [OTHER_PUBLIC])
            # It ended while a kernel had egress: the rules stayed, and so did what they say of the fleet.
            assert len(tables(place.node.name)) == 2
            async with worker(place.node.name, place.node.address, agent) as second:
                listing = run("ip", "netns", "exec", place.node.name, "nft", "list", "ruleset")
                assert OTHER_PUBLIC in listing
                assert await second.call("egress") == []
                await second.call("ensure_egress", "kept.1", path)
                assert await second.call("ensure_egress", "kept.1", path) == 0
                await second.call("open", ["kept.1"])
                assert await second.call("ensure_egress", "kept.1", path) == 0
                assert len(await second.call("egress")) == 1
                await second.call("open", ["another.1"])
                assert await second.call("egress") == []
                assert "out0" not in link_names(other)
                await second.call("ensure_egress", "kept.1", path)
                # A second time there is nothing left to do.
                for _ in range(2):
                    await second.call("remove_egress", "kept.1")
                    assert await second.call("egress") == []
        # The last one that nothing needs any more takes its rules along.
        assert len(tables(place.node.name)) == 1
        with ears(place.outside, PUBLIC, 7000) as (ear,):
            kernel.say(PUBLIC, 7000, b"untouched")
            assert await asyncio.to_thread(ear.recv, 100) == b"untouched"


async def test_an_egress_link_needs_a_namespace_of_the_kernels_own() -> None:
    async with world() as place:
        for path in ("/proc/self/ns/net", "/run/netns/there-is-none"):
            with pytest.raises(WorkerError, match="namespace"):
                await place.node.call("ensure_egress", "k.1", path)


@pytest.mark.attack("forged-vxlan")
@pytest.mark.parametrize("port", [4789, 14789])
async def test_vxlan_is_taken_from_the_sessions_own_nodes_only(port: int) -> None:
    async with two_nodes() as (one, two), Cluster([one, one, two], vni=4100, port=port).up() as cluster:
        main, _, remote = cluster.kernels
        run("ip", "-n", two.name, "addr", "add", "192.0.2.99/24", "dev", "up0")
        run("ip", "-n", one.name, "addr", "add", "192.0.2.77/24", "dev", "up0")

        def forge(source: str, destination: str, text: bytes) -> None:
            with inside(two.name, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
                sender.bind((source, 0))
                frame = plain_frame(main.member.mac, remote.member.mac, text)
                sender.sendto(vxlan(4100, frame), (destination, port))

        with Tap(main.namespace, "eth0") as tap:
            forge("192.0.2.99", one.address, b"forged")
            forge("192.0.2.99", "192.0.2.77", b"forged")
            forge(two.address, one.address, END)
            assert not [frame for frame in await tap.until(END) if b"forged" in frame]


@pytest.mark.attack("forged-vxlan")
async def test_a_node_of_one_session_is_no_node_of_another() -> None:
    async with switched_nodes(3) as (_, (one, two, three)):
        shared, other = Cluster([one, two], vni=4100), Cluster([one, three], vni=4200, subnet="10.128.0.16/28")
        async with shared.up(), other.up():
            main, remote = other.kernels

            def send(node: Node, text: bytes) -> None:
                with inside(node.name, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
                    sender.bind((node.address, 0))
                    frame = plain_frame(main.member.mac, remote.member.mac, text)
                    sender.sendto(vxlan(4200, frame), (one.address, 4789))

            with Tap(main.namespace, "eth0") as tap:
                send(two, b"forged")
                send(three, END)
                assert not [frame for frame in await tap.until(END) if b"forged" in frame]


def tap_mac(name: str) -> bytes:
    """MAC of the kernel's end of its egress link."""
    words = run("ip", "-n", name, "-o", "link", "show", "dev", "out0").split()
    return mac_bytes(words[words.index("link/ether") + 1])


def tables(name: str) -> list[str]:
    lines = run("ip", "netns", "exec", name, "nft", "list", "tables").splitlines()
    return [line.split()[2] for line in lines]


async def test_a_node_that_has_another_address_is_noticed() -> None:
    async with world() as place:
        assert await place.node.call("moved_from", NODE_OUTSIDE) is None
        run("ip", "-n", place.node.name, "addr", "del", f"{NODE_OUTSIDE}/24", "dev", "wan0")
        run("ip", "-n", place.node.name, "addr", "add", "203.0.113.77/24", "dev", "wan0")
        run("ip", "-n", place.node.name, "route", "add", "default", "via", ROUTER)
        assert await place.node.call("moved_from", NODE_OUTSIDE) == "203.0.113.77"
        # One that was added beside the agent's own changes nothing.
        assert await place.node.call("moved_from", "192.0.2.1") is None


async def test_a_node_on_its_loopback_interface_gives_kernels_links_that_linux_takes() -> None:
    with namespace("lo") as name:
        run("ip", "-n", name, "link", "set", "lo", "up")
        async with worker(name, "127.0.0.1", f"test-lo-{name[-6:]}") as node:
            uplink = await node.call("uplink", "127.0.0.1")
            # What the agent tells managers fits each kind of network.
            for vxlan in (False, True):
                mtu = inner_mtu([("127.0.0.1", uplink["mtu"])], vxlan=vxlan)
                async with Cluster([node], vni=4190 if vxlan else 0, mtu=mtu).up() as cluster:
                    assert link_names(cluster.kernels[0].namespace) == {"lo", "eth0"}
            async with outgoer(node) as kernel:
                assert link_names(kernel.namespace) == {"lo", "out0"}


EGRESS_DAMAGES = (
    ("node", "ip link del {link}"),
    ("node", "ip link set {link} down"),
    ("node", "ip route del {address}/32 dev {link}"),
    ("node", "ip neigh flush dev {link} nud permanent"),
    ("kernel", "ip link del out0"),
    ("kernel", "ip link set out0 down"),
    ("kernel", "ip addr flush dev out0"),
    ("kernel", "ip route del default"),
    ("kernel", "ip neigh flush dev out0 nud permanent"),
)


async def test_an_egress_link_that_others_change_is_made_again_with_its_address() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        address = kernel.address
        (link,) = await place.node.call("egress")
        for where, damage in EGRESS_DAMAGES:
            command = damage.format(link=link, address=address).split()
            run(command[0], "-n", place.node.name if where == "node" else kernel.namespace, *command[1:])
            assert await place.node.call("ensure_egress", kernel.attempt_id, kernel.path) > 0, damage
            assert await place.node.call("ensure_egress", kernel.attempt_id, kernel.path) == 0, damage
            assert (await place.node.call("egress"), kernel.address) == ([link], address), damage
            with ears(place.outside, PUBLIC, 7000) as (ear,):
                await asyncio.to_thread(kernel.say, PUBLIC, 7000, END)
                assert await asyncio.to_thread(ear.recv, 100) == END, damage


async def test_rules_inside_a_kernel_that_others_change_are_put_there_again() -> None:
    async with world() as place, networked_outgoer(place.node) as kernel:
        egress = ("ensure_egress", kernel.attempt_id, kernel.path, SESSION_ADDRESS)
        for damage in (
            "delete table ip retinue-egress",
            "flush ruleset",
            "delete chain ip retinue-egress departures",
            "flush chain ip retinue-egress arrivals",
            "add rule ip retinue-egress departures drop",
        ):
            run("nsenter", f"--net={kernel.path}", "nft", *damage.split())
            assert await place.node.call(*egress) > 0, damage
            assert await place.node.call(*egress) == 0, damage


async def test_elements_of_rules_that_others_delete_are_put_there_again() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        await place.node.call("route", [NEIGHBOUR])
        _, number = await place.node.call("publish", kernel.attempt_id, 8000, False)
        await place.node.call("lease", kernel.attempt_id, kernel.path, 9000, NEIGHBOUR, 600.0)
        table = next(
            line.split()[2]
            for line in run("nsenter", f"--net=/run/netns/{place.node.name}", "nft", "list", "tables").splitlines()
            if line.startswith("table inet retinue-")
        )

        def nft(*words: str) -> str:
            return run("nsenter", f"--net=/run/netns/{place.node.name}", "nft", *words)

        await place.node.call("look_closely")
        assert await place.node.call("look_closely")
        whole = sorted(nft("list", "table", "inet", table).replace(",", " ").split())
        for damage in (
            f"delete element inet {table} published {{ {number} }}",
            f"flush map inet {table} leased",
            f"flush set inet {table} never",
            f"add element inet {table} routers {{ {PRIVATE} }}",
        ):
            nft(*damage.split())
            assert not await place.node.call("look_closely"), damage
            assert sorted(nft("list", "table", "inet", table).replace(",", " ").split()) == whole, damage
            assert await place.node.call("look_closely"), damage
