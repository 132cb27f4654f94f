"""Bytes through `retinue port-forward`, beside the same program through `ssh -L`. Run as root;
each line is `name value unit peer ratio`.

A program in a kernel sends, or takes and confirms, so many bytes over one connection to a local port. Ours goes through
a tunnel of the gateway, with TLS up to there. Without a gateway, it goes by TLS to the agent, and where the name says
`relayed`, clients do not reach that, and the manager leads there; where it says `streamed`, they reach neither, and
bytes go through the manager and the agent by gRPC, with TLS on both hops. The peers are OpenSSH with its fastest cipher
here (aes128-gcm), to a server on this machine's loopback address and from there to the same program outside of a
kernel: `ssh` in one hop, `ssh-by-a-host` over two hosts, as the relayed way is, the first of which, like a manager, is
the only one that the client reaches.
Ratios above 1 say that ours carries more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from retinue.client.settings import ssh_directory
from retinue.client.transport.channel import parse_endpoint
from retinue.devtools.cluster import Cluster, ClusterOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retinue.client.aio import Client

MEGABYTES = 128
ROUNDS = 10
Address = tuple[str, int]
DOWN, UP = 7001, 7002
# How long a program has to end when it is asked to.
ENDS_SECONDS = 5
SERVER = """
import socket, sys, threading
size = int(sys.argv[1]) << 20
def down(c):
  with c:
    piece = memoryview(bytes(1 << 20))
    for _ in range(size >> 20):
        c.sendall(piece)
def up(c):
  with c:
    room, count = bytearray(1 << 20), 0
    while count < size and (taken := c.recv_into(room)):
        count += taken
    c.sendall(b"all")
def serve(port, one):
    listening = socket.create_server(("127.0.0.1", port))
    while True:
        threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()
threading.Thread(target=serve, args=(7001, down), daemon=True).start()
serve(7002, up)
"""


def down(port: int) -> float:
    """Seconds to receive everything."""
    with connected(port) as connection:
        room, count = bytearray(1 << 20), 0
        began = time.perf_counter()
        while count < MEGABYTES << 20:
            taken = connection.recv_into(room)
            assert taken
            count += taken
        return time.perf_counter() - began


def up(port: int) -> float:
    """Seconds to send everything, up to its confirmation."""
    with connected(port) as connection:
        piece = bytes(1 << 20)
        began = time.perf_counter()
        for _ in range(MEGABYTES):
            connection.sendall(piece)
        assert connection.recv(3, socket.MSG_WAITALL) == b"all"
        return time.perf_counter() - began


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A connection to a local port."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        yield connection


def free_port() -> int:
    """Returns a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_listening(port: int) -> None:
    """Returns once a program listens."""
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "nothing listens"
            time.sleep(0.05)
        else:
            return


@contextmanager
def server(directory: Path) -> Iterator[tuple[list[str], int]]:
    """A server of OpenSSH on this machine: options of the client's programs, and its port."""
    port, known = free_port(), directory / "known"
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    authorised = directory / "authorised"
    authorised.write_text((directory / "user.pub").read_text())
    authorised.chmod(0o600)
    command = ["/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-h", str(directory / "host"), "-p", str(port)]
    for option in (
        "ListenAddress=127.0.0.1",
        f"AuthorizedKeysFile={authorised}",
        "StrictModes=no",
        "PermitRootLogin=prohibit-password",
        f"PidFile={directory}/pid",
        "Subsystem=sftp internal-sftp",
    ):
        command += ["-o", option]
    with running(command, port):
        client = ["-F", "none", "-i", str(directory / "user"), "-c", "aes128-gcm@openssh.com"]
        yield [*client, "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={known}"], port


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """A program, from when it listens at a port."""
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_listening(port)
        yield
    finally:
        child.terminate()
        try:
            child.wait(ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            # ssh may wait for its way by a host, which waits for it.
            child.kill()
            child.wait()


@contextmanager
def ssh(directory: Path) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Local ports that lead to the program on this machine through ssh: in one hop, and by a host between."""
    straight, round_about = (free_port(), free_port()), (free_port(), free_port())
    with contextlib.ExitStack() as stack:
        stack.enter_context(running([sys.executable, "-c", SERVER, str(MEGABYTES)], UP))
        options, port = stack.enter_context(server(directory))
        client = ["ssh", *options, "-p", str(port)]
        between = ["-o", f"ProxyCommand={shlex.join(client)} -W %h:%p root@127.0.0.1"]
        for (local_down, local_up), way in ((straight, []), (round_about, between)):
            ports = ["-L", f"{local_down}:127.0.0.1:{DOWN}", "-L", f"{local_up}:127.0.0.1:{UP}"]
            stack.enter_context(running([*client, *way, "-N", *ports, "root@127.0.0.1"], local_up))
        yield straight, round_about


def environment(cluster: Cluster) -> dict[str, str]:
    """Variables by which commands find the cluster."""
    settings = cluster.settings
    found = {
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
    }
    return {**os.environ, **found}


@contextmanager
def port_forward(cluster: Cluster, session: str, home: Path) -> Iterator[tuple[int, int]]:
    """Local ports that lead to the program in the kernel."""
    local_down, local_up = free_port(), free_port()
    program = Path(sys.executable).with_name("retinue")
    ports = (f"down:{local_down}", f"up:{local_up}")
    variables = {**environment(cluster), "HOME": str(home), "RETINUE_CONTEXTS": str(home / "contexts.yaml")}
    with subprocess.Popen(
        [program, "port-forward", session, *ports], env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            for _ in ports:
                process.stdout.readline()
            yield local_down, local_up
        finally:
            process.terminate()


def measure(name: str, peer: str, ours: list[float], peers: list[float]) -> None:
    """Prints one figure."""
    rates = sorted(MEGABYTES / seconds for seconds in ours)
    rate, other = statistics.median(rates), MEGABYTES / statistics.median(peers)
    spread = f"min={rates[0]:.0f} max={rates[-1]:.0f}"
    print(f"{name} {rate:.0f} MiB/s {peer}={other:.0f} {rate / other:.2f} {spread}", flush=True)


async def main() -> None:
    """Prints the figures."""
    for gateway in (True, False):
        options = ClusterOptions(agents=1, gateway=gateway)
        async with Cluster(options=options) as cluster, cluster.client() as client:
            session = await client.sessions.create(
                type="interactive",
                command=["python3", "-c", SERVER, str(MEGABYTES)],
                slots={"cpu": "1", "mem": "128m"},
                termination_grace=0,
                ports=[("down", "tcp", DOWN), ("up", "tcp", UP)],
            )
            await session.wait("RUNNING", timeout=60)
            ways: dict[str, tuple[Address, ...]] = (
                {"": ()} if gateway else await ways_past_gateway(client, cluster, session.id)
            )
            await asyncio.to_thread(compare, cluster, session.id, ways)
            await session.terminate(force=True)
            await session.wait_ended(60)


async def ways_past_gateway(client: Client, cluster: Cluster, session: str) -> dict[str, tuple[Address, ...]]:
    """What a client does not reach, by the suffix of the figures of what it uses then."""
    async with client.sessions.open_port(session, "down", direct=True) as connection:
        node, manager = connection.direct_port, connection.relay_port
        assert node is not None
        assert manager is not None
    to_node, to_manager = (node.host, node.port), (parse_endpoint(cluster.settings.endpoint)[0], manager.port)
    return {"_to_node": (), "_relayed": (to_node,), "_streamed": (to_node, to_manager)}


@contextmanager
def unreached(home: Path, addresses: tuple[Address, ...]) -> Iterator[None]:
    """Has connections that are made meanwhile not be made to these."""
    directory = ssh_directory({"RETINUE_CONTEXTS": str(home / "contexts.yaml")})
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"silent-{quote(f'{host}:{port}', safe='')}" for host, port in addresses]
    for file in files:
        file.touch()
    try:
        yield
    finally:
        for file in files:
            file.unlink()


def compare(cluster: Cluster, session: str, ways: dict[str, tuple[Address, ...]]) -> None:
    """Measures in turns, so that whatever else the machine does concerns all."""
    with (
        tempfile.TemporaryDirectory() as name,
        ssh(Path(name)) as (straight, round_about),
        port_forward(cluster, session, Path(name)) as ours,
    ):

        def through(silent: tuple[Address, ...], carry: Callable[[int], float], port: int) -> float:
            with unreached(Path(name), silent):
                return carry(port)

        for place, (figure, carry) in enumerate((("tunnel_down", down), ("tunnel_up", up))):
            carry(ours[place])
            mine: dict[str, list[float]] = {suffix: [] for suffix in ways}
            peers: tuple[list[float], list[float]] = ([], [])
            for _ in range(ROUNDS):
                for suffix, silent in ways.items():
                    mine[suffix].append(through(silent, carry, ours[place]))
                for times, port in zip(peers, (straight[place], round_about[place]), strict=True):
                    times.append(carry(port))
            for suffix, times in mine.items():
                measure(f"{figure}{suffix}", "ssh", times, peers[0])
                measure(f"{figure}{suffix}_by_a_host", "ssh-by-a-host", times, peers[1])


if __name__ == "__main__":
    asyncio.run(main())
