"""Files through `retinue sftp`, beside the same server reached directly. Run as root;
each line is `name value unit peer ratio`.

The server is the one in the jail of a system session. Ours connects to the node; in rows of `sftp-relay`, clients do
not reach that, and the manager leads there; in rows of `sftp-stream`, they reach neither, and bytes go through the
manager and the agent by gRPC, with TLS on both hops. The peer is the same client, with the same certificate, in the
session's network namespace. Figures are of transfers alone, without the start of the client: what a small file takes is
subtracted. `first-byte` is that start. Ratios above 1 say that ours carries more, or takes longer to the first byte.
`sftp_many` has the figures of many files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from retinue.client.settings import ssh_directory
from retinue.client.transport.channel import parse_endpoint
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.v1 import fleet_service_pb2
from tests.bench.tunnel import environment
from tests.integration.client.command.inside.sftp_sessions import listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session

MEGABYTES = 256
ROUNDS = 5
WAYS = {"ours": "sftp", "relay": "sftp-relay", "stream": "sftp-stream"}
"""What the rows of each way but the direct one are called."""


@dataclass(frozen=True, slots=True)
class Road:
    """A way to the server: what the client's command begins with, and its options."""

    prefix: tuple[str, ...]
    options: tuple[str, ...]
    host: str
    variables: dict[str, str]
    unreached: tuple[Path, ...] = ()
    """Files by which a client knows that an address and port have not answered within the last minute."""

    def start(self, batch: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*self.prefix, "sftp", *self.options, "-b", "-", self.host],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self.variables,
        )
        assert process.stdin is not None
        process.stdin.write(batch.encode())
        process.stdin.close()
        return process

    def seconds(self, batch: str) -> float:
        """How long a batch of commands takes, with the start of the client."""
        with self.refusing():
            began = time.perf_counter()
            process = self.start(batch)
            assert process.stderr is not None
            errors = process.stderr.read()
            if process.wait():
                raise RuntimeError(errors.decode(errors="replace"))
            return time.perf_counter() - began

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Has clients that start meanwhile connect to nothing that they are not to reach."""
        for file in self.unreached:
            file.touch()
        try:
            yield
        finally:
            for file in self.unreached:
                file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Served:
    """A session that serves a directory of the node: its cluster, its name, the process of its server,
    and where node and manager take connections.
    """

    cluster: Cluster
    name: str
    server: int
    shared: Path
    node: tuple[str, int]
    manager: tuple[str, int]


def roads(served: Served, directory: Path) -> dict[str, Road]:
    """Ours to the node, by the manager's port and by the stream, and the direct one."""
    name = served.name
    variables = {
        **environment(served.cluster),
        "HOME": str(directory),
        "RETINUE_CONTEXTS": str(directory / "contexts.yaml"),
    }
    program = str(Path(sys.executable).with_name("retinue"))
    block = subprocess.run(
        [program, "ssh-config", name], check=True, capture_output=True, text=True, env=variables
    ).stdout
    config = directory / "config"
    config.write_text(block)
    settings = dict(line.split(maxsplit=1) for line in block.splitlines() if line.startswith("    "))
    direct = {**settings, "HostName": "127.0.0.1", "Port": "2022"}
    for proxy in ("ProxyCommand", "ProxyUseFdpass"):
        del direct[proxy]
    options = tuple(word for item in direct.items() for word in ("-o", "=".join(item)))
    ours = ((), ("-F", str(config)), f"{name}.retinue", variables)
    node, manager = (
        ssh_directory(variables) / f"silent-{quote(f'{host}:{port}', safe='')}"
        for host, port in (served.node, served.manager)
    )
    return {
        "ours": Road(*ours),
        "relay": Road(*ours, unreached=(node,)),
        "stream": Road(*ours, unreached=(node, manager)),
        "direct": Road(("nsenter", f"--net=/proc/{served.server}/ns/net"), options, "work@127.0.0.1", variables),
    }


async def direct_ports(client: Client, endpoint: str, name: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """Where the node takes connections, and where the manager does."""
    async with client.sessions.open_port(name, "sftp", direct=True) as connection:
        node, manager = connection.direct_port, connection.relay_port
        assert node is not None
        assert manager is not None
        return (node.host, node.port), (parse_endpoint(endpoint)[0], manager.port)


def compare(served: Served, directory: Path) -> None:
    """Measures in turns, so that whatever else the machine does concerns all."""
    source, small = directory / "source", directory / "small"
    with source.open("wb") as file:
        for _ in range(MEGABYTES):
            file.write(os.urandom(1 << 20))
    small.write_bytes(b"x")
    ways = roads(served, directory)
    starts: dict[str, list[float]] = {way: [] for way in ways}
    taken: dict[tuple[str, str], list[float]] = {(figure, way): [] for figure in ("up", "down") for way in ways}
    for _ in range(ROUNDS):
        for way, road in ways.items():
            starts[way].append(road.seconds(f"put {small} small-{way}\n"))
            taken["up", way].append(road.seconds(f"put {source} big-{way}\n"))
            taken["down", way].append(road.seconds(f"get big-{way} {directory}/back-{way}\n"))
    middle = {way: statistics.median(values) for way, values in starts.items()}
    for way, row in WAYS.items():
        for figure in ("up", "down"):
            ours, other = (MEGABYTES / (statistics.median(taken[figure, key]) - middle[key]) for key in (way, "direct"))
            print(f"{row}-{figure} {ours:.0f} MiB/s direct={other:.0f} {ours / other:.2f}", flush=True)
        first, other = middle[way], middle["direct"]
        print(f"{row}-first-byte {first * 1000:.0f} ms direct={other * 1000:.0f} {first / other:.2f}", flush=True)
    for way in ways:
        assert (directory / f"back-{way}").read_bytes() == source.read_bytes()


async def session_of(client: Client, shared: Path) -> Session:
    """A session that serves a directory."""
    roots = [fleet_service_pb2.MountRoot(path=str(shared), writable=True)]
    await client.resource_groups.update("default", mount_roots=roots)
    session = await client.sessions.create(
        type="system", name="files", mounts=[(str(shared), "/data", True)], slots={"cpu": "1", "mem": "512m"}
    )
    return await session.wait("RUNNING", timeout=60)


async def measure(compare: Callable[[Served, Path], None]) -> None:
    """Prints the figures of a comparison, which gets a session and a directory of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root, tempfile.TemporaryDirectory() as own:
        shared = Path(root)
        shared.chmod(0o777)
        async with Cluster(options=ClusterOptions(agents=1)) as cluster, cluster.client() as client:
            session = await session_of(client, shared)
            ports = await direct_ports(client, cluster.settings.endpoint, session.id)
            served = Served(cluster, session.name, await listener(session.id), shared, *ports)
            await asyncio.to_thread(compare, served, Path(own))


if __name__ == "__main__":
    asyncio.run(measure(compare))
