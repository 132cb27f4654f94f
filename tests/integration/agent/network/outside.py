"""A world outside of the nodes for tests: a router next to one node, and behind it all other addresses."""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.network import namespaces
from tests.integration.agent.network.nodes import Node, Tap, inside, namespace, run, worker
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

NODE_OUTSIDE, ROUTER = "203.0.113.1", "203.0.113.2"
PUBLIC, OTHER_PUBLIC, PRIVATE, METADATA = "198.51.100.7", "198.51.100.8", "10.9.9.9", "169.254.169.254"
NEIGHBOUR = "192.0.2.2"
SESSION_ADDRESS = "10.128.0.2"


@dataclass(frozen=True)
class World:
    """A node with a way to the outside, a neighbour on its underlay, and the outside; names of namespaces."""

    node: Node
    neighbour: str
    outside: str


@asynccontextmanager
async def world(allowed: Sequence[str] = (), name_servers: Sequence[str] = ()) -> AsyncIterator[World]:
    """One node between an underlay with a neighbour and a router to all other addresses."""
    with namespace("n1") as node, namespace("n2") as neighbour, namespace("out") as outside:
        _join(node, "up0", "192.0.2.1", neighbour, NEIGHBOUR)
        _join(node, "wan0", NODE_OUTSIDE, outside, ROUTER)
        for address in (PUBLIC, OTHER_PUBLIC, PRIVATE, METADATA):
            run("ip", "-n", outside, "addr", "add", f"{address}/32", "dev", "lo")
        run("ip", "-n", node, "route", "add", "default", "via", ROUTER)
        async with worker(node, "192.0.2.1", f"test-{secrets.token_hex(3)}", allowed, name_servers) as started:
            yield World(started, neighbour, outside)


def _join(one: str, link: str, address: str, other: str, other_address: str) -> None:
    run("ip", "link", "add", link, "netns", one, "type", "veth", "peer", link, "netns", other)
    for name, own in ((one, address), (other, other_address)):
        run("ip", "-n", name, "addr", "add", f"{own}/24", "dev", link)
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "link", "set", link, "up")


@dataclass(frozen=True)
class Outgoer:
    """A namespace that stands for a kernel with egress."""

    attempt_id: str
    namespace: str

    @property
    def path(self) -> str:
        return str(namespaces.DIRECTORY / self.namespace)

    @property
    def address(self) -> str:
        line = run("ip", "-n", self.namespace, "-4", "-o", "addr", "show", "dev", "out0")
        return line.split()[3].partition("/")[0]

    def open(self, kind: int) -> socket.socket:
        opened = inside(self.namespace, lambda: socket.socket(socket.AF_INET, kind))
        opened.settimeout(NEVER)
        return opened

    def tap(self) -> Tap:
        return Tap(self.namespace, "out0")

    def say(self, address: str, port: int, text: bytes) -> None:
        """One datagram; that there is no way to an address is an answer too."""
        with self.open(socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
            sender.sendto(text, (address, port))


@asynccontextmanager
async def outgoer(node: Node, attempt_id: str = "") -> AsyncIterator[Outgoer]:
    """A kernel with egress."""
    with namespace("k") as name:
        kernel = Outgoer(attempt_id or f"{secrets.token_hex(4)}.1", name)
        await node.call("ensure_egress", kernel.attempt_id, kernel.path)
        yield kernel


@asynccontextmanager
async def networked_outgoer(node: Node) -> AsyncIterator[Outgoer]:
    """A kernel with egress and a session's network, which has no other kernels."""
    with namespace("k") as name, namespace("s") as session:
        run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "k2", "netns", session)
        run("ip", "-n", name, "addr", "add", f"{SESSION_ADDRESS}/28", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        kernel = Outgoer(f"{secrets.token_hex(4)}.1", name)
        for _ in range(2):
            await node.call("ensure_egress", kernel.attempt_id, kernel.path, SESSION_ADDRESS)
        yield kernel


@contextlib.contextmanager
def ears(name: str, address: str, *ports: int) -> Iterator[list[socket.socket]]:
    """Sockets in the named namespace that hear datagrams to these ports of the address."""
    with contextlib.ExitStack() as stack:
        opened = []
        for port in ports:
            ear = stack.enter_context(inside(name, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
            ear.bind((address, port))
            ear.settimeout(NEVER)
            opened.append(ear)
        yield opened


def heard(ear: socket.socket) -> list[bytes]:
    """What has come to it and was not taken yet."""
    found = []
    ear.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(ear.recv(65536))
    ear.settimeout(NEVER)
    return found


def datagram(
    source: str, destination: str, source_mac: bytes, destination_mac: bytes, text: bytes, port: int = 7000
) -> bytes:
    """A whole frame with a UDP datagram to the port, without checksums of its own text."""
    udp = struct.pack("!HHHH", 7000, port, 8 + len(text), 0) + text
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, socket.IPPROTO_UDP, 0)
    header += socket.inet_aton(source) + socket.inet_aton(destination)
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)
    return destination_mac + source_mac + b"\x08\x00" + header[:10] + checksum + header[12:] + udp


def vxlan(vni: int, frame: bytes) -> bytes:
    """What a datagram to port 4789 holds to carry a frame (RFC 7348)."""
    return struct.pack("!II", 0x08000000, vni << 8) + frame
