"""Sessions of containers against Docker's own overlay network. Run as root; each line is `name value unit peer ratio`.

Four nodes on one switch, each with an engine. Ours: a session of four kernels, one on each node. Peer: a service of
Docker Swarm with four replicas, one on each node, on an overlay network that is there already, with the same image and
the same limits. What starts is timed from the request to the moment at which each of the four has had an answer from
all four by TCP, as the containers themselves tell it by the machine's own clock; ours and the peer's are done in turns,
and nothing of the one is left while the other runs. The data path is measured between two nodes, in turns again, while
both stand at once. Where Swarm cannot be had, the reason is printed and figures have no peer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import docker
import docker.errors

from tests.bench import report
from tests.bench.network import round_trip, throughput
from tests.integration.agent.docker.cluster import DockerCluster
from tests.integration.agent.docker.engine import IMAGE, TestEngine, install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session

NODES = 4
NETWORK, SERVICE = "bench", "pairs"
MEMORY = 64 << 20
TIMEOUT = 120.0
POLL = 0.05
# Prints the seconds since the machine's start at which all of the addresses had answered.
REACH = """
for address in $addresses; do until [ -n "$(nc -w 1 $address 7000 </dev/null 2>/dev/null)" ]; do sleep 0.01; done; done
cut -d ' ' -f 1 /proc/uptime
exec sleep 100000
"""
OURS = f"""
nc -ll -p 7000 -e hostname &
addresses='main1 sub1 sub2 sub3'
{REACH}"""
THEIRS = f"""
nc -ll -p 7000 -e hostname &
addresses=
until [ $(echo $addresses | wc -w) = {NODES} ]; do
    addresses=$(nslookup tasks.{SERVICE} 2>/dev/null | sed -n '/^Name/,$s/^Address: *//p')
done
{REACH}"""


@dataclass(frozen=True)
class End:
    """A container's network namespace, as a path, and its address."""

    namespace: str
    address: str


class Swarm:
    """Docker Swarm over the engines of a cluster, with an overlay network. Every method blocks."""

    def __init__(self, engines: list[TestEngine], addresses: list[str]) -> None:
        """Joins them; raises docker.errors.APIError with Docker's own words where that does not work."""
        self._clients = [engine.client() for engine in engines]
        first, *others = self._clients
        first.init_swarm(advertise_addr=addresses[0], listen_addr=f"{addresses[0]}:2377")
        token = first.inspect_swarm()["JoinTokens"]["Worker"]
        for client, address in zip(others, addresses[1:], strict=True):
            client.join_swarm([f"{addresses[0]}:2377"], token, listen_addr=f"{address}:2377", advertise_addr=address)
        first.create_network(NETWORK, driver="overlay", attachable=True)
        # By any other name each node would ask a registry for it first.
        self._image = first.inspect_image(IMAGE)["Id"]

    def close(self) -> None:
        """Closes the connections; what there is goes with the engines."""
        for client in self._clients:
            client.close()

    def create(self) -> None:
        """Asks for the service."""
        limits = docker.types.Resources(mem_limit=MEMORY, cpu_limit=2_000_000_000)
        container = docker.types.ContainerSpec(self._image, command=["sh", "-c", THEIRS])
        template = docker.types.TaskTemplate(
            container, resources=limits, placement=docker.types.Placement(maxreplicas=1), networks=[{"Target": NETWORK}]
        )
        mode = docker.types.ServiceMode("replicated", NODES)
        # Without IP_VS in the machine's kernel there are no virtual addresses,
        # and the names of tasks are what a service has.
        self._clients[0].create_service(template, name=SERVICE, mode=mode, endpoint_spec={"Mode": "dnsrr"})

    def containers(self) -> list[tuple[docker.APIClient, str]]:
        """All there are of the service, and who has them."""
        wanted = {"label": f"com.docker.swarm.service.name={SERVICE}"}
        return [
            (client, container["Id"])
            for client in self._clients
            for container in client.containers(all=True, filters=wanted)
        ]

    def printed(self) -> list[str]:
        """What each has printed, of those that have."""
        texts = [client.logs(name).decode().strip() for client, name in self.containers()]
        return [text for text in texts if text]

    def ends(self) -> list[End]:
        """Where they are."""
        found = []
        for client, name in self.containers():
            facts = client.inspect_container(name)
            address = facts["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
            found.append(End(f"/proc/{facts['State']['Pid']}/ns/net", address))
        return found

    def remove(self) -> None:
        """Ends the service, and returns when nothing of it is left."""
        self._clients[0].remove_service(SERVICE)
        wait_until(lambda: not self.containers())


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError("it took too long")
        time.sleep(POLL)


def now() -> float:
    """As containers read it from /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextlib.asynccontextmanager
async def session_of_four(client: Client) -> AsyncIterator[tuple[Session, float]]:
    """A session, and the seconds until all of its pairs had spoken; it has ended afterwards."""
    began = now()
    session = await client.sessions.create(
        type="interactive",
        image=IMAGE,
        command=["sh", "-c", OURS],
        sub_command=["sh", "-c", OURS],
        cluster_size=NODES,
        cluster_mode="multi-node",
        # A node has room for one.
        slots={"cpu": "2.5", "mem": str(MEMORY)},
        termination_grace=0,
    )
    try:
        await session.wait("RUNNING", timeout=TIMEOUT)
        assert len({kernel.agent for kernel in session.kernels}) == NODES
        ends = [await first_line(session, kernel.hostname) for kernel in session.kernels]
        yield session, max(map(float, ends)) - began
    finally:
        await session.terminate(force=True)
        await session.wait_ended(TIMEOUT)


async def first_line(session: Session, hostname: str) -> str:
    text = b""
    async with asyncio.timeout(TIMEOUT), contextlib.aclosing(session.logs(hostname, follow=True)) as chunks:
        async for chunk in chunks:
            text += chunk.data
            if b"\n" in text:
                break
    return text.decode().strip()


@contextlib.contextmanager
def service_of_four(swarm: Swarm) -> Iterator[float]:
    """The seconds until all pairs of a service had spoken; it is gone in the end."""
    began = now()
    swarm.create()
    try:
        wait_until(lambda: len(swarm.printed()) == NODES)
        yield max(map(float, swarm.printed())) - began
    finally:
        swarm.remove()


def ends_of(cluster: DockerCluster, session: Session) -> list[End]:
    """Where the kernels of a session are."""
    found = []
    for kernel in session.kernels:
        client = cluster.engines[kernel.agent].client()
        pid = client.inspect_container(f"retinue-{kernel.id}.{kernel.attempt}")["State"]["Pid"]
        client.close()
        found.append(End(f"/proc/{pid}/ns/net", kernel.address))
    return found


async def starts(cluster: DockerCluster, client: Client, swarm: Swarm | None, rounds: int) -> None:
    """Starts of four containers on four nodes."""
    values: list[float] = []
    peers: list[float] = []
    for number in range(-1, rounds):
        async with session_of_four(client) as (_, took):
            pass
        await asyncio.to_thread(wait_until, lambda: not left(cluster))
        if number >= 0:
            values.append(took)
        if swarm is not None:
            took = await asyncio.to_thread(started, swarm)
            if number >= 0:
                peers.append(took)
    show("docker-cluster-4-nodes-all-pairs", values, peers, "s")


def left(cluster: DockerCluster) -> list[str]:
    """Names of what is left of our containers and networks; links of Docker's own are in
    the nodes' namespaces as well.
    """
    found = [cluster.find_leftovers(agent) for agent in cluster.agents]
    return [name for one in found for name in (*one.containers, *one.networks)]


def started(swarm: Swarm) -> float:
    with service_of_four(swarm) as took:
        return took


async def data_path(cluster: DockerCluster, client: Client, swarm: Swarm | None, pairs: int, seconds: int) -> None:
    """TCP between two nodes."""
    async with session_of_four(client) as (session, _):
        ours = await asyncio.to_thread(ends_of, cluster, session)
        await asyncio.to_thread(compare, ours, swarm, pairs, seconds)


def compare(ours: list[End], swarm: Swarm | None, pairs: int, seconds: int) -> None:
    with contextlib.ExitStack() as stack:
        sides = [ours]
        if swarm is not None:
            stack.enter_context(service_of_four(swarm))
            sides.append(swarm.ends())
        rates: list[list[float]] = [[], []]
        trips: list[list[float]] = [[], []]
        for pair in range(-1, pairs):
            turns = list(enumerate(sides))
            for kind, (client, server, *_) in turns if pair % 2 else reversed(turns):
                rate = throughput(client.namespace, server.namespace, server.address, seconds)
                trip = round_trip(client.namespace, server.namespace, server.address)
                if pair >= 0:
                    rates[kind].append(rate)
                    trips[kind].append(trip)
    show("vxlan_tcp_throughput_docker_overlay", rates[0], rates[1], "Gbit/s")
    show("vxlan_tcp_round_trip_docker_overlay", trips[0], trips[1], "us")


def show(name: str, values: list[float], peers: list[float], unit: str) -> None:
    report(name, statistics.median(values), unit, statistics.median(peers) if peers else None, spread=values)


async def main(rounds: int, pairs: int, seconds: int) -> None:
    """Prints the figures."""
    install()
    install({"iperf3": "iperf3"})
    async with DockerCluster(agents=NODES) as cluster, cluster.client() as client:
        addresses = [agent.node.address for agent in cluster.agents if agent.node is not None]
        swarm: Swarm | None = None
        try:
            swarm = await asyncio.to_thread(Swarm, list(cluster.engines.values()), addresses)
        except docker.errors.APIError as error:
            sys.stdout.write(f"docker-overlay: peer unavailable: {error.explanation or error}\n")
        try:
            await starts(cluster, client, swarm, rounds)
            await data_path(cluster, client, swarm, pairs, seconds)
        finally:
            if swarm is not None:
                swarm.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, and short ones")
    quick = parser.parse_args().quick
    asyncio.run(main(*((2, 2, 1) if quick else (7, 7, 2))))
