"""Ways out of sessions on real nodes: the outside world is reached, and nothing that belongs to the platform."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from agent.network import namespaces
from retinue.client import Client
from retinue.client.local.cluster import AGENT_PORT, Cluster
from retinue.client.local.nodes import Node
from tests.integration.network.nodes import inside, run

pytestmark = pytest.mark.asyncio(loop_scope="session")

PUBLIC = "198.51.100.7"
PROBE = """
import json, socket, sys
found = {}
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 0.7) as connection:
            found[place] = connection.recv(100).decode()
    except OSError as error:
        found[place] = type(error).__name__
print(json.dumps(found), flush=True)
"""


@dataclass
class Outside:
    """A host outside of the cluster that says to everybody from where they come."""

    port: int = 0
    callers: list[str] = field(default_factory=list)


@contextlib.contextmanager
def outside(cluster: Cluster) -> Iterator[Outside]:
    """A host on the underlay's switch that is the way to PUBLIC for all nodes."""
    nodes = [agent.node for agent in cluster.agents if agent.node is not None]
    prefix, _, number = nodes[0].namespace.rpartition("-n")
    del number
    name = f"rt-test-out-{secrets.token_hex(4)}"
    gateway = f"{nodes[0].address.rpartition('.')[0]}.251"
    namespaces.create(name, {})
    port = f"out{secrets.token_hex(3)}"
    try:
        switch = f"{prefix}-switch"
        # Nodes remember whose address this is from one test to the next.
        mac = ("address", "02:00:00:00:00:fb")
        run("ip", "link", "add", port, "netns", switch, "type", "veth", "peer", "up0", *mac, "netns", name)
        run("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
        for address, link in ((f"{gateway}/24", "up0"), (f"{PUBLIC}/32", "lo")):
            run("ip", "-n", name, "addr", "add", address, "dev", link)
            run("ip", "-n", name, "link", "set", link, "up")
        for node in nodes:
            run("ip", "-n", node.namespace, "route", "add", PUBLIC, "via", gateway)
        with inside(name, lambda: socket.create_server((PUBLIC, 0))) as server:
            found = Outside(server.getsockname()[1])

            def answer() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        connection, (host, _) = server.accept()
                        with connection:
                            found.callers.append(host)
                            connection.sendall(host.encode())

            threading.Thread(target=answer, daemon=True).start()
            try:
                yield found
            finally:
                server.shutdown(socket.SHUT_RDWR)
                for node in nodes:
                    run("ip", "-n", node.namespace, "route", "del", PUBLIC)
    finally:
        run("ip", "-n", f"{prefix}-switch", "link", "del", port)
        namespaces.delete(name)


async def probes(client: Client, places: list[str], **options: object) -> dict[str, dict[str, str]]:
    """What each kernel of a session found at the places, by host name."""
    command = ["/usr/bin/python3", "-c", PROBE, *places]
    session = await client.sessions.create(type="batch", command=command, sub_command=command, **options)  # type: ignore[arg-type]
    await session.wait("RUNNING", timeout=30)
    names = [kernel.hostname for kernel in session.kernels]
    await session.wait_ended(60)
    found = {}
    for name in names:
        text = b"".join([chunk.data async for chunk in client.sessions.logs(session.id, name)]).decode()
        if name == "main1" or text:
            found[name] = json.loads(text)
    return found


def protected(cluster: Cluster) -> list[str]:
    """Where the platform's own services listen, as `host:port`."""
    nodes: list[Node] = [agent.node for agent in cluster.agents if agent.node is not None]
    manager = nodes[0].address.rpartition(".")[0] + ".1"
    users = cluster.settings.endpoint.rpartition(":")[2]
    return [*(f"{node.address}:{AGENT_PORT}" for node in nodes), f"{manager}:{users}", cluster.agent_endpoint]


@pytest.mark.parametrize("size", [1, 2])
async def test_kernels_reach_the_outside_and_no_part_of_the_platform(
    client: Client, cluster: Cluster, size: int
) -> None:
    with outside(cluster) as host:
        public, forbidden = f"{PUBLIC}:{host.port}", protected(cluster)
        # Each place is there for whoever is allowed to it.
        for place in forbidden:
            address, _, port = place.rpartition(":")
            socket.create_connection((address, int(port)), 5).close()
        found = await probes(client, [public, *forbidden], cluster_size=size, cluster_mode="multi-node")
        assert "main1" in found
        nodes = {agent.node.address for agent in cluster.agents if agent.node is not None}
        for answers in found.values():
            assert answers.pop(public) in nodes
            assert set(answers.values()) == {"TimeoutError"}


async def test_a_group_may_deny_the_way_out(client: Client, cluster: Cluster) -> None:
    await client.resource_groups.update("default", egress="deny")
    try:
        with outside(cluster) as host:
            found = await probes(client, [f"{PUBLIC}:{host.port}", *protected(cluster)[:1]])
            assert set(found["main1"].values()) == {"OSError"}
            assert not host.callers
    finally:
        await client.resource_groups.update("default", egress="allow")
