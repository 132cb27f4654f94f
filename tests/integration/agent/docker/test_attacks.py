"""What a container cannot do: two sessions side by side on two nodes,
and everything one may try against the other and the platform.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import json
import socket
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.agent.kernel.python_runtime import build_runtime
from retinue.agent.network.core.egress_plan import GATEWAY_MAC
from retinue.agent.network.core.topology import VXLAN_PORT, Member
from retinue.devtools.leftovers import network_namespaces
from tests.integration.agent.docker.cluster import ENGINE_PORT
from tests.integration.agent.docker.engine import IMAGE
from tests.integration.agent.inside.reach import FORBIDDEN, PROBE, PUBLIC, outside, protected
from tests.integration.agent.network.nodes import (
    Tap,
    arp_request,
    inside,
    is_vxlan,
    mac_bytes,
    mac_of,
    plain_frame,
    run,
)
from tests.integration.agent.network.outside import datagram, vxlan
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from retinue.client.aio import Session
    from tests.integration.agent.docker.cluster import DockerCluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

PORT = 7000
DATABASE_PORT = 5432
LISTEN = ("sh", "-c", f"exec nc -ll -p {PORT} -e hostname")
# Peers are waited for; what others answer would be here within seconds.
TRY = f"""
peers=$1; shift
for address in $peers; do
    until [ -n "$(nc $address {PORT} </dev/null 2>/dev/null)" ]; do sleep 0.1; done
    echo $address
done
for address in "$@"; do
    ( [ -n "$(nc -w 5 $address {PORT} </dev/null 2>/dev/null)" ] && echo $address ) &
done
wait
"""
SOCKETS = r"find / \( -path /proc -o -path /sys \) -prune -o -type s -print 2>/dev/null"
# What it takes to send what is not one's own, and each way to get there.
POWERS = """
import fcntl, json, socket, struct
def gained(attempt):
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "gained"
def transparent():
    with socket.socket() as own:
        own.setsockopt(socket.SOL_IP, 19, 1)
def another_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind((sys.argv[1], 0))
def without_being_there():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.SOL_IP, 15, 1)
        own.bind((sys.argv[1], 0))
        own.sendto(b"ATTACK", (sys.argv[2], 7001))
def another_mac():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        fcntl.ioctl(own, 0x8924, struct.pack("16sH6s8x", b"eth0", 1, b"\\x0a\\x58\\x0a\\x80\\x00\\x0d"))
print(json.dumps({
    "packets": gained(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "raw": gained(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)),
    "transparent": gained(transparent),
    "another address": gained(another_address),
    "without being there": gained(without_being_there),
    "another mac": gained(another_mac),
    "tunnel": gained(lambda: open("/dev/net/tun", "rb")),
}), flush=True)
"""
FORGE = """
import json
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    for frame in json.loads(sys.argv[1]):
        for node in sys.argv[2:]:
            try:
                own.sendto(bytes.fromhex(frame), (node, 4789))
            except OSError:
                pass
print("sent", flush=True)
"""
ATTACK, HONEST = b"ATTACK", b"HONEST"


@dataclass(frozen=True)
class Contained:
    """A kernel of a session, and where its network is on this machine."""

    session: Session
    member: Member
    namespace: str

    @property
    def address(self) -> str:
        return self.member.address

    def tap(self, interface: str = "eth0") -> Tap:
        return Tap(self.namespace, interface)


@dataclass(frozen=True)
class Scene:
    """Two sessions, a kernel of each on each node; `vnis` are those of their networks."""

    cluster: DockerCluster
    left: tuple[Contained, ...]
    right: tuple[Contained, ...]
    vnis: tuple[int, ...]

    @property
    def nodes(self) -> list[str]:
        return [agent.node.address for agent in self.cluster.agents if agent.node is not None]

    @property
    def namespaces(self) -> list[str]:
        return [agent.node.namespace for agent in self.cluster.agents if agent.node is not None]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(cluster: DockerCluster) -> AsyncIterator[Scene]:
    await asyncio.to_thread(build_runtime)
    async with cluster.client() as client:
        # A node has room for one kernel of each, and for no two of either.
        sessions = [
            await client.sessions.create(
                type="interactive",
                image=IMAGE,
                command=LISTEN,
                sub_command=LISTEN,
                cluster_size=2,
                cluster_mode="multi-node",
                slots={"cpu": cpu, "mem": "512m"},
                termination_grace=0,
            )
            for cpu in ("2.1", "1.6")
        ]
        try:
            for session in sessions:
                await session.wait("RUNNING", timeout=NEVER)
                assert len({kernel.agent for kernel in session.kernels}) == 2
            left, right = [await asyncio.to_thread(contained, cluster, session) for session in sessions]
            yield Scene(cluster, left, right, await asyncio.to_thread(vnis, cluster))
        finally:
            for session in sessions:
                await session.terminate(force=True)
            for session in sessions:
                await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


def contained(cluster: DockerCluster, session: Session) -> tuple[Contained, ...]:
    found = []
    for kernel in session.kernels:
        client = cluster.engines[kernel.agent].client()
        pid = client.inspect_container(f"retinue-{kernel.id}.{kernel.attempt}")["State"]["Pid"]
        client.close()
        mac = mac_of(ipaddress.IPv4Address(kernel.address))
        member = Member(kernel.id, kernel.hostname, kernel.address, mac, "", local=True)
        found.append(Contained(session, member, f"/proc/{pid}/ns/net"))
    return tuple(found)


def vnis(cluster: DockerCluster) -> tuple[int, ...]:
    found = set()
    for agent in cluster.agents:
        for name in network_namespaces(agent.id):
            (link,) = json.loads(run("ip", "-n", name, "-d", "-j", "link", "show", "vx0"))
            found.add(int(link["linkinfo"]["info_data"]["id"]))
    return tuple(sorted(found))


async def ran(kernel: Contained, *command: str) -> str:
    """What a command prints in the kernel, as its user."""
    async with kernel.session.attach(command, kernel.member.hostname) as attachment:
        await attachment.end_input()
        return b"".join([piece.data async for piece in attachment if not piece.errors]).decode()


async def program(kernel: Contained, text: str, arguments: Sequence[str]) -> str:
    """What a Python program prints in the kernel, as its user."""
    async with kernel.session.code() as code:
        result = await code.execute(f"import socket, sys\nsys.argv = {['', *arguments]!r}\n{text}")
        assert result.status == "OK", result
        return str(result.stdout)


@pytest.mark.attack("other-sessions")
async def test_every_pair_of_kernels_of_two_sessions(scene: Scene) -> None:
    """TCP and ICMP from each to all others: peers of the session are reached;
    kernels of other sessions neither answer nor receive a packet.
    """
    kernels = scene.left + scene.right
    assert len({kernel.address for kernel in kernels}) == 4
    peers = {
        one: [other.address for other in kernels if other is not one and other.session is one.session]
        for one in kernels
    }
    others = {one: [other for other in kernels if other.session is not one.session] for one in kernels}
    printed = await asyncio.gather(
        *(
            ran(one, "sh", "-c", TRY, "sh", " ".join(peers[one]), *(other.address for other in others[one]))
            for one in kernels
        )
    )
    for one, text in zip(kernels, printed, strict=True):
        assert text.splitlines() == peers[one]
    for one in kernels:
        own, strangers = peers[one], others[one]
        with ExitStack() as stack:
            ears = [stack.enter_context(other.tap(link)) for other in strangers for link in ("eth0", "out0")]
            # Their answers would come before those that are waited for.
            assert await asyncio.to_thread(echoes, one, [other.address for other in strangers], own) == set(own)
            assert not [frame for ear in ears for frame in ear.frames() if ATTACK in frame]


def echoes(kernel: Contained, others: Sequence[str], own: Sequence[str]) -> set[str]:
    """Who answers a ping, the user's kind that takes no power; returns when all of its own have answered."""
    request = struct.pack("!BBHHH", 8, 0, 0, 0, 1) + ATTACK
    found: set[str] = set()
    with inside(
        kernel.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    ) as asking:
        asking.settimeout(NEVER)
        for address in (*others, *own):
            # That there is no way to an address is an answer too.
            with contextlib.suppress(OSError):
                asking.sendto(request, (address, 0))
        while not found.issuperset(own):
            found.add(asking.recvfrom(100)[1][0])
    return found


@pytest.mark.attack("platform-from-a-kernel")
async def test_the_platform_is_out_of_reach_and_the_outside_is_not(scene: Scene) -> None:
    manager = scene.nodes[0].rpartition(".")[0] + ".1"
    database, engines = f"{manager}:{DATABASE_PORT}", [f"{node}:{ENGINE_PORT}" for node in scene.nodes]
    # The cluster's own database has no port: one of another program would be here.
    with outside(scene.cluster) as host, socket.create_server((manager, DATABASE_PORT)):
        forbidden = [*protected(scene.cluster), *engines, database]
        for place in forbidden:
            address, _, port = place.rpartition(":")
            socket.create_connection((address, int(port)), NEVER).close()
        public, peer = f"{PUBLIC}:{host.port}", f"sub1:{PORT}"
        found = json.loads(await program(scene.left[0], PROBE, [public, peer, FORBIDDEN, *forbidden]))
        assert found.pop(public) in scene.nodes
        assert found.pop(peer) == "sub1\n"
        assert found == dict.fromkeys(forbidden, "ConnectionRefusedError")
    # Nor is there a file by which anything of the node's is reached.
    assert await ran(scene.left[1], "sh", "-c", SOCKETS) == ""


@pytest.mark.attack("forged-frames")
async def test_a_container_has_no_power_to_forge(scene: Scene) -> None:
    attacker, victim = scene.left[0], scene.right[0]
    found = json.loads(await program(attacker, POWERS, [victim.address, scene.left[1].address]))
    assert "gained" not in found.values(), found


@pytest.mark.attack("forged-frames")
async def test_forged_frames_reach_no_kernel(scene: Scene) -> None:
    """As if a container had all powers over its network: frames with addresses of others, on both of its interfaces."""
    for attackers, victims in ((scene.left, scene.right), (scene.right, scene.left)):
        with ExitStack() as stack:
            ears = [stack.enter_context(one.tap(name)) for one in victims for name in ("eth0", "out0")]
            ears += [stack.enter_context(Tap(name, "eth0")) for name in scene.namespaces]
            for attacker, peer in (attackers, attackers[::-1]):
                own = stack.enter_context(attacker.tap())
                way = stack.enter_context(attacker.tap("out0"))
                heard = stack.enter_context(peer.tap())
                for frame in frames(attacker, peer, victims):
                    own.send(frame)
                    way.send(frame)
                own.send(plain_frame(peer.member.mac, attacker.member.mac, HONEST))
                assert not [frame for frame in await heard.until(HONEST) if spoofs(frame, attacker)]
            for ear in ears:
                assert not [frame for frame in ear.frames() if ATTACK in frame or asks(frame, attackers)]


def frames(attacker: Contained, peer: Contained, victims: Sequence[Contained]) -> list[bytes]:
    """Everything one may send to those of another session, and to one's own in the name of others."""
    member = attacker.member
    made = [plain_frame("ff:ff:ff:ff:ff:ff", member.mac, ATTACK)]
    for victim, other in itertools.permutations(victims, 2):
        made.append(arp_request(member, victim.address))
        # In the name of the other one's neighbour, to it, and to one's own.
        made.append(arp_request(other.member, victim.address))
        for source in (member.mac, other.member.mac):
            made += [plain_frame(to, source, ATTACK) for to in (victim.member.mac, GATEWAY_MAC)]
        made.append(plain_frame(peer.member.mac, other.member.mac, ATTACK))
        for address, mac in itertools.product((attacker.address, other.address), (member.mac, other.member.mac)):
            for to in (victim.member.mac, GATEWAY_MAC):
                made.append(datagram(address, victim.address, mac_bytes(mac), mac_bytes(to), ATTACK))
    return made


def spoofs(frame: bytes, attacker: Contained) -> bool:
    """Whether a frame that came to the attacker's own peer has another's address."""
    return ATTACK in frame and frame[6:12] != mac_bytes(attacker.member.mac)


def asks(frame: bytes, askers: Sequence[Contained]) -> bool:
    """Whether a frame is an ARP request of one of them."""
    return frame[12:14] == b"\x08\x06" and frame[28:32] in {socket.inet_aton(one.address) for one in askers}


@pytest.mark.attack("forged-vxlan")
async def test_forged_vxlan_reaches_no_kernel(scene: Scene) -> None:
    attacker, victims = scene.left[0], scene.right
    frames = [
        vxlan(vni, plain_frame(victim.member.mac, other.member.mac, ATTACK))
        for victim, other in itertools.permutations(victims, 2)
        for vni in scene.vnis
    ]
    with ExitStack() as stack:
        ears = [stack.enter_context(victim.tap()) for victim in victims]
        wires = [stack.enter_context(Tap(name, "eth0")) for name in scene.namespaces]
        # By the means a container has, and then with the sources of nodes, as if it had all powers.
        assert await program(attacker, FORGE, [json.dumps([frame.hex() for frame in frames]), *scene.nodes]) == "sent\n"
        way = stack.enter_context(attacker.tap("out0"))
        source_mac = out_mac(attacker)
        for source, node, frame in itertools.product((*scene.nodes, way_address(attacker)), scene.nodes, frames):
            way.send(datagram(source, node, source_mac, mac_bytes(GATEWAY_MAC), frame, VXLAN_PORT))
        # What the other node itself sends so is taken: the frames are right, and what came before them would be here.
        for victim, ear in zip(victims, ears, strict=True):
            forger, target = await asyncio.to_thread(ends, scene, victim)
            other = next(one for one in victims if one is not victim)

            honest = plain_frame(victim.member.mac, other.member.mac, HONEST)
            with inside(forger, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
                for vni in scene.vnis:
                    sender.sendto(vxlan(vni, honest), (target, VXLAN_PORT))
            assert not [frame for frame in await ear.until(HONEST) if ATTACK in frame]
        for wire in wires:
            assert not [frame for frame in wire.frames() if is_vxlan(frame) and ATTACK in frame]


def ends(scene: Scene, victim: Contained) -> tuple[str, str]:
    """The namespace of the node that a kernel is not on, and the address of the one it is on."""
    kernel = next(kernel for kernel in victim.session.kernels if kernel.id == victim.member.kernel_id)
    nodes = {agent.id: agent.node for agent in scene.cluster.agents if agent.node is not None}
    (other,) = (node for name, node in nodes.items() if name != kernel.agent)
    return other.namespace, nodes[kernel.agent].address


def out_mac(kernel: Contained) -> bytes:
    (link,) = json.loads(run("nsenter", f"--net={kernel.namespace}", "ip", "-j", "link", "show", "dev", "out0"))
    return mac_bytes(link["address"])


def way_address(kernel: Contained) -> str:
    """The address that its node knows a kernel by; the kernel itself has none but its session's."""
    return str(ipaddress.IPv4Address(out_mac(kernel)[2:]))
