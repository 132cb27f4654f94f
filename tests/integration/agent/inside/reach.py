"""What is around a cluster for its kernels to reach for: a host outside, the platform's own services,
and a program that tries.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.network import namespaces
from retinue.devtools.cluster import AGENT_PORT, Cluster
from tests.integration.agent.network.nodes import inside, run
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retinue.devtools.nodes import Node

PUBLIC = "198.51.100.7"
FORBIDDEN = "forbidden"
"""A word between the places that must answer, which PROBE gives all the time that they take,
and those from where nothing comes back.
"""
PROBE = f"""
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
places = [place for place in sys.argv[1:] if place != "{FORBIDDEN}"]
answering = sys.argv[1:].index("{FORBIDDEN}")
def probe(number, place):
    host, _, port = place.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), {NEVER} if number < answering else 4)
    except OSError as error:
        return type(error).__name__
    with connection:
        # What answers may be late on a busy machine, and a server that waits to be spoken to says nothing.
        connection.settimeout({NEVER} if number < answering else 30)
        try:
            return connection.recv(100).decode()
        except OSError:
            # A server that waits to be spoken to was reached all the same.
            return "connected"
with ThreadPoolExecutor(len(places)) as threads:
    print(json.dumps(dict(zip(places, threads.map(probe, range(len(places)), places)))), flush=True)
"""


@dataclass
class Outside:
    """A host outside of the cluster that returns to each client the address that it comes from."""

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


def protected(cluster: Cluster) -> list[str]:
    """Where the platform's own services listen, as `host:port`."""
    nodes: list[Node] = [agent.node for agent in cluster.agents if agent.node is not None]
    manager = nodes[0].address.rpartition(".")[0] + ".1"
    users = cluster.settings.endpoint.rpartition(":")[2]
    return [*(f"{node.address}:{AGENT_PORT}" for node in nodes), f"{manager}:{users}", cluster.agent_endpoint]
