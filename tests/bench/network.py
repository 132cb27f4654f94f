"""Sessions' networks against the same made by hand. Run as root; each line is `name value unit peer ratio`.

Two nodes are network namespaces joined by a veth. Ours is what an agent makes of a network; the peer is a bridge, a
VXLAN device and a veth made by `ip`, with defaults but for the MTU, learning and flooding. Both stand at once and are
measured in turns, so that both meet the same noise. Programming is a network of 64 members, one of them on this node,
against `ip -batch` and `bridge -batch` of the same links and entries, one process each;
making the namespaces is left out of both.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import secrets
import socket
import statistics
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.network import namespaces, netlink
from retinue.agent.network.core.observed import Uplink
from retinue.agent.network.core.operations import CreateTunnel, Namespace
from retinue.agent.network.core.plan import BRIDGE, PROBE_LINK, plan_attachment, plan_network
from retinue.agent.network.core.topology import Member, Network
from retinue.agent.network.links import apply
from retinue.agent.network.observation import observe_kernel, observe_port, observe_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNDERLAY = ("192.0.2.1", "192.0.2.2")
MTU = 1450
MEMBERS = 64
MESSAGE = b"x" * 64
ROUND_TRIPS = 3000
TRIES = 100


def run(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def inside(name: str, function: Callable[[], object]) -> object:
    """What the function answers inside the named namespace."""
    with namespaces.opened(namespaces.DIRECTORY / name) as descriptor:
        return namespaces.run_inside(descriptor, function)


@contextmanager
def namespace(label: str) -> Iterator[str]:
    """A new empty namespace."""
    name = f"rt-bench-{label}-{secrets.token_hex(3)}"
    namespaces.create(name, {})
    try:
        yield name
    finally:
        namespaces.delete(name)


def mac(address: str) -> str:
    """The MAC that goes with an address."""
    return "0a:58:" + ipaddress.IPv4Address(address).packed.hex(":")


def network_of(addresses: list[str], owners: list[int], here: int, vni: int, subnet: str) -> Network:
    """A network with a member per address, as node `here` has to know it."""
    members = tuple(
        Member(str(uuid.UUID(int=rank + 1)), f"k{rank}", address, mac(address), UNDERLAY[owner], local=owner == here)
        for rank, (address, owner) in enumerate(zip(addresses, owners, strict=True))
    )
    return Network(str(uuid.UUID(int=7)), vni, subnet, MTU, members)


def program(node: str, session: str, network: Network) -> int:
    """Makes the network in the session's namespace as an agent does; the answer is how many steps that took."""
    uplink = inside(node, lambda: Uplink(socket.if_nametoindex("up0"), "up0", UNDERLAY[0], 1500))
    assert isinstance(uplink, Uplink)
    address = UNDERLAY[0] if node.startswith("rt-bench-n1") else UNDERLAY[1]
    uplink = replace(uplink, address=address)
    with (
        namespaces.opened(namespaces.DIRECTORY / session) as inner,
        namespaces.opened(namespaces.DIRECTORY / node) as outer,
        netlink.connected(inner) as connection,
        netlink.connected(outer) as underlay,
    ):
        steps = plan_network(network, uplink, observe_session(connection, BRIDGE, PROBE_LINK))
        apply(steps, {Namespace.SESSION: connection, Namespace.NODE: underlay}, inner, inner)
    assert any(isinstance(step.operation, CreateTunnel) for step in steps)
    return len(steps)


def attach(session: str, kernel: str, network: Network, kernel_id: str) -> None:
    """Gives a kernel its place as an agent does."""
    member = network.member(kernel_id)
    with (
        namespaces.opened(namespaces.DIRECTORY / session) as outer,
        namespaces.opened(namespaces.DIRECTORY / kernel) as inner,
        netlink.connected(outer) as outside,
        netlink.connected(inner) as within,
    ):
        port = observe_port(outside, BRIDGE, f"k{network.offset(member)}")
        steps = plan_attachment(network, member, port, observe_kernel(within))
        apply(steps, {Namespace.SESSION: outside, Namespace.KERNEL: within}, outer, inner)


def by_hand(node: str, session: str, kernel: str, own: str, other: str, vni: int) -> None:
    """The same for one kernel on each node, by `ip` and `bridge`."""
    local = UNDERLAY[0] if node.startswith("rt-bench-n1") else UNDERLAY[1]
    remote = UNDERLAY[1] if local == UNDERLAY[0] else UNDERLAY[0]
    vxlan = f"type vxlan id {vni} local {local} dev up0 dstport 4789 nolearning"
    run("ip", "-n", node, "link", "add", "vx1", "netns", session, *vxlan.split())
    inner = ("ip", "-n", session)
    run(*inner, "link", "add", "br1", "type", "bridge")
    run(*inner, "link", "set", "br1", "mtu", str(MTU), "up")
    run(*inner, "link", "set", "vx1", "mtu", str(MTU), "master", "br1", "up")
    run(
        *inner,
        "link",
        "add",
        "p1",
        "mtu",
        str(MTU),
        "type",
        "veth",
        "peer",
        "eth0",
        "address",
        mac(own),
        "netns",
        kernel,
    )
    run(*inner, "link", "set", "p1", "master", "br1", "up")
    run("bridge", "-n", session, "fdb", "append", mac(other), "dev", "vx1", "dst", remote)
    run("bridge", "-n", session, "fdb", "append", "00:00:00:00:00:00", "dev", "vx1", "dst", remote)
    run("ip", "-n", kernel, "link", "set", "lo", "up")
    run("ip", "-n", kernel, "link", "set", "eth0", "mtu", str(MTU), "up")
    run("ip", "-n", kernel, "addr", "add", f"{own}/24", "dev", "eth0")


def throughput(client: str, server: str, address: str, seconds: int) -> float:
    """Gbit/s of one TCP stream from client to server, which are names or paths of namespaces."""
    serve = ["nsenter", f"--net={namespaces.DIRECTORY / server}", "iperf3", "-s", "-1", "-B", address]
    with subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as listening:
        try:
            for _ in range(TRIES):
                target = ["-c", address, "-t", str(seconds)]
                command = ["nsenter", f"--net={namespaces.DIRECTORY / client}", "iperf3", "-J", *target]
                done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds + 20)
                end = json.loads(done.stdout).get("end", {})
                # It says so, and exits with 0, when the server was not there yet.
                if "sum_received" in end:
                    return float(end["sum_received"]["bits_per_second"]) / 1e9
                time.sleep(0.05)
        finally:
            listening.terminate()
    raise RuntimeError(f"no stream to {address}: {done.stdout}")


def round_trip(client: str, server: str, address: str) -> float:
    """Median microseconds of 64 bytes there and back over one TCP connection."""
    with ExitStack() as stack:
        listener = inside(server, lambda: socket.create_server((address, 0)))
        assert isinstance(listener, socket.socket)
        stack.enter_context(listener)

        def echo() -> None:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                while part := connection.recv(64):
                    connection.sendall(part)

        threading.Thread(target=echo, daemon=True).start()
        talker = inside(client, lambda: socket.create_connection(listener.getsockname(), 10))
        assert isinstance(talker, socket.socket)
        stack.enter_context(talker)
        talker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        samples = []
        for _ in range(ROUND_TRIPS):
            begin = time.perf_counter()
            talker.sendall(MESSAGE)
            talker.recv(64)
            samples.append(time.perf_counter() - begin)
        return statistics.median(samples) * 1e6


def report(name: str, values: list[float], peers: list[float], unit: str) -> None:
    """One line of medians, with the smallest and largest value."""
    value, peer = statistics.median(values), statistics.median(peers)
    spread = f"min={min(values):.2f} max={max(values):.2f}"
    sys.stdout.write(f"{name} {value:.2f} {unit} {peer:.2f} {value / peer:.2f} {spread}\n")
    sys.stdout.flush()


@contextmanager
def two_nodes() -> Iterator[tuple[str, str]]:
    """Two nodes joined by a veth."""
    with namespace("n1") as one, namespace("n2") as two:
        run("ip", "link", "add", "up0", "netns", one, "type", "veth", "peer", "up0", "netns", two)
        for name, address in zip((one, two), UNDERLAY, strict=True):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "up0")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", "up0", "up")
        yield one, two


def data_path(pairs: int, seconds: int) -> None:
    """TCP throughput and round trips, ours and by hand."""
    addresses, other = ["10.128.0.2", "10.128.0.3"], ["10.129.0.2", "10.129.0.3"]
    with two_nodes() as nodes, ExitStack() as stack:
        made = {
            label: stack.enter_context(namespace(label)) for label in ("s1", "s2", "a1", "a2", "h1", "h2", "b1", "b2")
        }
        for number, node in enumerate(nodes):
            network = network_of(addresses, [0, 1], number, 4001, "10.128.0.0/28")
            program(node, made[f"s{number + 1}"], network)
            attach(made[f"s{number + 1}"], made[f"a{number + 1}"], network, network.members[number].kernel_id)
            by_hand(node, made[f"h{number + 1}"], made[f"b{number + 1}"], other[number], other[1 - number], 4002)
        ours, hand = (made["a1"], made["a2"], addresses[1]), (made["b1"], made["b2"], other[1])
        rates, trips = ([], []), ([], [])  # type: tuple[list[float], list[float]], tuple[list[float], list[float]]
        for pair in range(-1, pairs):
            for kind in (0, 1) if pair % 2 else (1, 0):
                rate, trip = throughput(*(ours, hand)[kind], seconds), round_trip(*(ours, hand)[kind])
                if pair >= 0:
                    rates[kind].append(rate)
                    trips[kind].append(trip)
        report("vxlan_tcp_throughput_by_hand", *rates, "Gbit/s")
        report("vxlan_tcp_round_trip_by_hand", *trips, "us")


def programming(pairs: int) -> None:
    """A network of 64 members on one node, ours and by batches of `ip` and `bridge`."""
    subnet = "10.128.0.0/25"
    addresses = [str(ipaddress.IPv4Address("10.128.0.2") + rank) for rank in range(MEMBERS)]
    times: tuple[list[float], list[float]] = ([], [])
    with two_nodes() as (one, _):
        network = network_of(addresses, [0] + [1] * (MEMBERS - 1), 0, 4003, subnet)
        remote = network.members[1:]
        links = [
            f"link add br1 address 0e:58:0a:80:00:00 mtu {MTU} type bridge stp_state 0 mcast_snooping 0",
            f"link set vx1 mtu {MTU} master br1 up",
            "link set br1 up",
            "link set vx1 type bridge_slave learning off flood off mcast_flood off bcast_flood off neigh_suppress on",
            *(f"neigh replace {member.address} lladdr {member.mac} dev br1 nud permanent" for member in remote),
        ]
        entries = [f"fdb replace {member.mac} dev vx1 dst {UNDERLAY[1]} self permanent" for member in remote]
        entries += [f"fdb replace {member.mac} dev vx1 master static" for member in remote]
        texts = {"ip": "\n".join(links) + "\n", "bridge": "\n".join(entries) + "\n"}
        vxlan = f"type vxlan id 4004 local {UNDERLAY[0]} dev up0 dstport 4789 nolearning".split()
        for pair in range(-1, pairs):
            for kind in (0, 1) if pair % 2 else (1, 0):
                with namespace("s") as session:
                    begin = time.perf_counter()
                    if kind == 0:
                        program(one, session, network)
                    else:
                        run("ip", "-n", one, "link", "add", "vx1", "netns", session, *vxlan)
                        for tool, text in texts.items():
                            command = [tool, "-n", session, "-batch", "-"]
                            subprocess.run(command, input=text, check=True, capture_output=True, text=True)
                    took = (time.perf_counter() - begin) * 1e3
                    # The next one has the same VNI, which is free once the device is gone.
                    run("ip", "-n", session, "link", "del", "vx0" if kind == 0 else "vx1")
                if pair >= 0:
                    times[kind].append(took)
    report("program_64_members", *times, "ms")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="of runs of the data path")
    parser.add_argument("--seconds", type=int, default=2, help="of one run of iperf3, whole ones")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter")
    given = parser.parse_args()
    programming(5 if given.quick else 20)
    data_path(2 if given.quick else given.pairs, 1 if given.quick else given.seconds)


if __name__ == "__main__":
    main()
