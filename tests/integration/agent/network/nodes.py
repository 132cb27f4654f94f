"""Nodes, kernels and traffic for the tests of networks: nodes and kernels are network namespaces on this machine."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from retinue.agent.network import namespaces
from retinue.agent.network.core.topology import VXLAN_PORT, Member, Network
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

REPOSITORY = Path(__file__).parents[4]
Result = TypeVar("Result")


def run(*command: str) -> str:
    """What a command of the tests' own prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=NEVER)
    return done.stdout


def inside(name: str, function: Callable[[], Result]) -> Result:
    """What the function answers inside the named namespace."""
    with namespaces.opened(namespaces.DIRECTORY / name) as descriptor:
        return namespaces.run_inside(descriptor, function)


def link_names(name: str) -> set[str]:
    return set(inside(name, lambda: [entry for _, entry in socket.if_nameindex()]))


class WorkerError(Exception):
    """What a node's side answered instead of a result."""


@dataclass
class Node:
    """An agent's side of the network code in a namespace of its own."""

    name: str
    address: str
    process: asyncio.subprocess.Process
    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    ended: bool = False

    async def call(self, method: str, *arguments: Any) -> Any:
        if self.ended:
            raise WorkerError("the node's side ended")
        number = next(self.numbers)
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        assert self.process.stdin is not None
        plain = [asdict(value) if isinstance(value, Network) else value for value in arguments]
        self.process.stdin.write((json.dumps([number, method, *plain]) + "\n").encode())
        return await future

    @property
    def label(self) -> str:
        """Returns `n1` and so on: the part of the name that a test gave."""
        return self.name.split("-")[2]

    async def read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            answer = json.loads(line)
            future = self.waiting.pop(answer["number"])
            if "error" in answer:
                future.set_exception(WorkerError(f"{answer['error']}: {answer['text']}"))
            else:
                future.set_result(answer["result"])
        self.ended = True
        for future in self.waiting.values():
            future.set_exception(WorkerError("the node's side ended"))


@asynccontextmanager
async def worker(
    name: str, address: str, agent_id: str, allowed: Sequence[str] = (), name_servers: Sequence[str] = ()
) -> AsyncIterator[Node]:
    """A node's side of the network code in the named namespace; the caller has made it and removes it."""
    state = tempfile.mkdtemp(prefix="rt-test-state-")
    process = await asyncio.create_subprocess_exec(
        "nsenter",
        f"--net={namespaces.DIRECTORY / name}",
        sys.executable,
        str(Path(__file__).with_name("worker.py")),
        agent_id,
        address,
        ",".join(allowed),
        state,
        *name_servers,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    node = Node(name, address, process)
    reader = asyncio.create_task(node.read())
    try:
        yield node
    finally:
        with suppress(WorkerError):
            for session_id in await node.call("observed"):
                await node.call("remove", session_id)
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await reader
        shutil.rmtree(state, ignore_errors=True)


@contextmanager
def namespace(label: str) -> Iterator[str]:
    """A new empty namespace."""
    name = f"rt-test-{label}-{secrets.token_hex(4)}"
    namespaces.create(name, {})
    try:
        yield name
    finally:
        namespaces.delete(name)


@asynccontextmanager
async def two_nodes(mtu: int = 1500, version: int = 4) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes joined by a veth, with agents of the same names on each run."""
    addresses = ("192.0.2.1", "192.0.2.2") if version == 4 else ("2001:db8::1", "2001:db8::2")
    with namespace("n1") as first, namespace("n2") as second:
        run(
            "ip",
            "link",
            "add",
            "up0",
            "netns",
            first,
            "mtu",
            str(mtu),
            "type",
            "veth",
            "peer",
            "up0",
            "netns",
            second,
            "mtu",
            str(mtu),
        )
        for name, address in zip((first, second), addresses, strict=True):
            prefix = f"{address}/24" if version == 4 else f"{address}/64"
            run("ip", "-n", name, "addr", "add", prefix, "dev", "up0", *(() if version == 4 else ("nodad",)))
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", "up0", "up")
        tag = secrets.token_hex(3)
        async with (
            worker(first, addresses[0], f"test-{tag}-1") as one,
            worker(second, addresses[1], f"test-{tag}-2") as two,
        ):
            yield one, two


@asynccontextmanager
async def switched_nodes(count: int) -> AsyncIterator[tuple[str, list[Node]]]:
    """So many nodes on one switch, with the name of the switch's namespace;
    its ports are called `p0`, `p1` and so on.
    """
    tag = secrets.token_hex(3)
    async with AsyncExitStack() as stack:
        switch = stack.enter_context(namespace("switch"))
        run("ip", "-n", switch, "link", "add", "sw0", "up", "type", "bridge")
        found = []
        for number in range(count):
            name, address = stack.enter_context(namespace(f"n{number + 1}")), f"192.0.2.{number + 1}"
            peer = ("peer", "up0", "netns", name)
            run("ip", "link", "add", f"p{number}", "netns", switch, "type", "veth", *peer)
            run("ip", "-n", switch, "link", "set", f"p{number}", "master", "sw0", "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "up0")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", "up0", "up")
            found.append(await stack.enter_async_context(worker(name, address, f"test-{tag}-{number + 1}")))
        yield switch, found


@dataclass(frozen=True)
class Kernel:
    """A namespace that stands for a kernel, and its place."""

    member: Member
    node: Node
    namespace: str

    @property
    def path(self) -> str:
        return str(namespaces.DIRECTORY / self.namespace)

    def open(self, kind: int, protocol: int = 0, family: int = socket.AF_INET) -> socket.socket:
        """A socket inside the kernel's namespace."""
        opened = inside(self.namespace, lambda: socket.socket(family, kind, protocol))
        opened.settimeout(NEVER)
        return opened


def mac_of(address: ipaddress.IPv4Address) -> str:
    return "0a:58:" + address.packed.hex(":")


class Cluster:
    """A session spread over nodes: what each node has to know, and a kernel per member."""

    def __init__(
        self, nodes: list[Node], vni: int, subnet: str = "10.128.0.0/28", mtu: int = 1450, port: int = VXLAN_PORT
    ) -> None:
        """One kernel for each entry of `nodes`, in this order."""
        self.session_id = str(uuid.uuid4())
        self.vni, self.subnet, self.mtu, self.port = vni, subnet, mtu, port
        # Labels of nodes whose agents do not answer probes.
        self.old: set[str] = set()
        self.nodes = list(dict.fromkeys(node.name for node in nodes))
        self._by_name = {node.name: node for node in nodes}
        self._owners = nodes
        first = ipaddress.IPv4Network(subnet).network_address
        self.members = [
            Member(
                str(uuid.uuid4()), f"kernel{rank}", str(first + rank), mac_of(first + rank), node.address, local=False
            )
            for rank, node in enumerate(nodes, start=2)
        ]
        self.kernels: list[Kernel] = []

    def network(self, node: Node) -> Network:
        """The network as the node has to know it; agents are called as their nodes, `n1` and so on."""
        members = tuple(
            Member(
                member.kernel_id,
                member.hostname,
                member.address,
                member.mac,
                owner.address,
                local=owner is node,
                agent_id=owner.label,
                proves_paths=owner.label not in self.old,
            )
            for member, owner in zip(self.members, self._owners, strict=True)
        )
        return Network(self.session_id, self.vni, self.subnet, self.mtu, members, self.port)

    async def ensure(self) -> None:
        for name in self.nodes:
            node = self._by_name[name]
            await node.call("ensure", self.network(node))

    async def attach(self) -> None:
        for kernel in self.kernels:
            await kernel.node.call("attach", self.network(kernel.node), kernel.member.kernel_id, kernel.path)

    async def remove(self) -> None:
        for name in self.nodes:
            await self._by_name[name].call("remove", self.session_id)

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Cluster]:
        """The session, with all of its kernels attached; removed at the end."""
        names: list[str] = []
        try:
            for member, owner in zip(self.members, self._owners, strict=True):
                name = f"rt-test-k{len(names)}-{secrets.token_hex(4)}"
                namespaces.create(name, {})
                names.append(name)
                self.kernels.append(Kernel(member, owner, name))
            await self.ensure()
            await self.attach()
            yield self
        finally:
            try:
                await self.remove()
            finally:
                for name in names:
                    namespaces.delete(name)


def exchange(client: Kernel, server: Kernel, payload: bytes, port: int = 7000) -> tuple[bytes, str]:
    """Sends bytes over TCP, and answers what came back from the server and which address the server saw."""
    with server.open(socket.SOCK_STREAM) as listener, client.open(socket.SOCK_STREAM) as talker:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((server.member.address, port))
        listener.listen()
        talker.connect((server.member.address, port))
        connection, (seen, _) = listener.accept()
        with connection:
            connection.settimeout(NEVER)
            talker.sendall(payload)
            talker.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: connection.recv(65536), b""))
            connection.sendall(received[::-1])
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: talker.recv(65536), b"")), seen


class Tap:
    """All frames that pass an interface, from now on."""

    def __init__(self, name: str, interface: str) -> None:
        """The socket is opened in the named namespace."""
        self._socket = inside(name, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
        self._socket.bind((interface, 3))
        self._socket.setblocking(False)

    def __enter__(self) -> Tap:
        """Ready."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the socket."""
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def frames(self) -> list[bytes]:
        """What has passed since the last time, in either direction."""
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self._socket.recv(65536))
        return found

    async def until(self, mark: bytes) -> list[bytes]:
        """All frames up to the first one with the mark in it."""
        found: list[bytes] = []

        def wanted(frame: bytes) -> bool:
            found.append(frame)
            return mark in frame

        await self.frame(wanted)
        return found

    async def frame(self, wanted: Callable[[bytes], bool]) -> bytes:
        """The first frame that is wanted; others are dropped."""
        loop = asyncio.get_running_loop()
        while True:
            frame = await loop.sock_recv(self._socket, 65536)
            if wanted(frame):
                return frame


def is_vxlan(frame: bytes) -> bool:
    """Whether the frame carries VXLAN over IPv4."""
    return frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_UDP and frame[36:38] == struct.pack("!H", 4789)


def mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def arp_request(sender: Member, address: str) -> bytes:
    """A broadcast that asks who has the address."""
    source = mac_bytes(sender.mac)
    ethernet = b"\xff" * 6 + source + b"\x08\x06"
    request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + source + socket.inet_aton(sender.address)
    return (ethernet + request + bytes(6) + socket.inet_aton(address)).ljust(60, b"\0")


def plain_frame(destination: str, source: str, payload: bytes) -> bytes:
    """A frame of an unused type (IEEE 802, for local experiments)."""
    return (mac_bytes(destination) + mac_bytes(source) + b"\x88\xb5" + payload).ljust(60, b"\0")
