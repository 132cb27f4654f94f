"""Networks come, are repaired and go, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import secrets
import uuid
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.network import namespaces
from tests.integration.agent.network.nodes import (
    Cluster,
    Node,
    WorkerError,
    exchange,
    inside,
    link_names,
    namespace,
    run,
    two_nodes,
    worker,
)
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.asyncio(loop_scope="module")

VXLAN_PORT = "12B5"


@asynccontextmanager
async def process_in(name: str) -> AsyncIterator[int]:
    """A process inside the named namespace; the answer is its id."""
    process = await asyncio.create_subprocess_exec("nsenter", f"--net=/run/netns/{name}", "sleep", "1000")
    try:
        wanted = os.stat(f"/run/netns/{name}").st_ino
        await eventually(lambda: os.stat(f"/proc/{process.pid}/ns/net").st_ino == wanted)
        yield process.pid
    finally:
        process.kill()
        await process.wait()


def mounts_of(process: int) -> str:
    return Path(f"/proc/{process}/mountinfo").read_text()


def udp_ports(name: str) -> set[str]:
    def read() -> set[str]:
        lines = [
            line
            for table in ("udp", "udp6")
            for line in Path(f"/proc/thread-self/net/{table}").read_text().splitlines()[1:]
        ]
        return {line.split()[1].rpartition(":")[2] for line in lines}

    return inside(name, read)


def no_vxlan_socket(name: str) -> bool:
    return VXLAN_PORT not in udp_ports(name)


async def test_applied_twice_nothing_changes(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with Cluster([one, one, two], vni=4101).up() as cluster:
        for node in (one, two):
            assert await node.call("ensure", cluster.network(node)) == 0
        for kernel in cluster.kernels:
            assert (
                await kernel.node.call("attach", cluster.network(kernel.node), kernel.member.kernel_id, kernel.path)
                == 0
            )
        name = await one.call("namespace", cluster.session_id)
        assert link_names(name) == {"lo", "br0", "vx0", "k2", "k3", "p0", "probe0"}
        assert name in run("ip", "netns", "list")
        assert await one.call("observed") == [cluster.session_id]


async def test_what_was_changed_by_hand_is_repaired(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with Cluster([one, one, two], vni=4102).up() as cluster:
        name = await one.call("namespace", cluster.session_id)
        for damage in (
            "ip link set br0 down",
            "ip link del vx0",
            "ip link del br0",
            "ip link set k2 nomaster",
            "ip neigh flush dev br0 nud permanent",
            "bridge fdb del 0a:58:0a:80:00:04 dev vx0 self",
            "bridge fdb append 00:00:00:00:00:00 dev vx0 dst 192.0.2.2 self",
            "bridge link set dev vx0 flood on neigh_suppress off",
            "bridge link set dev k2 learning on locked off",
            "ip link set br0 type bridge mcast_snooping 1",
            "ip link set k3 mtu 1000",
            "ip link add k13 type veth peer k14",
        ):
            command = damage.split()
            run(command[0], "-n", name, *command[1:])
            assert await one.call("ensure", cluster.network(one)) > 0, damage
            assert await one.call("ensure", cluster.network(one)) == 0, damage
            assert (await asyncio.to_thread(exchange, cluster.kernels[0], cluster.kernels[2], b"hello"))[
                0
            ] == b"olleh", damage


async def test_what_was_cut_off_half_way_is_completed_or_removed(pair: tuple[Node, Node]) -> None:
    one, two = pair
    cluster = Cluster([one, two], vni=4103)
    path = namespaces.DIRECTORY / await one.call("namespace", cluster.session_id)
    for half in (path.touch, lambda: namespaces.create(path.name, {})):
        half()
        assert await one.call("observed") == [cluster.session_id]
        await one.call("remove", cluster.session_id)
        assert not path.exists()
        half()
        assert await one.call("ensure", cluster.network(one)) > 0
        assert await one.call("ensure", cluster.network(one)) == 0
        await one.call("remove", cluster.session_id)
        assert await one.call("observed") == []


def is_a_namespace(path: Path) -> bool:
    """Whether the file is more than the name of one."""
    return path.exists() and path.stat().st_dev != path.parent.stat().st_dev


def has_links(path: Path) -> bool:
    return is_a_namespace(path) and link_names(path.name) > {"lo"}


POINTS: dict[str, Callable[[Path], bool]] = {
    "asked": lambda _path: True,
    "named": Path.exists,
    "made": is_a_namespace,
    "with links": has_links,
}
"""How far a network has come when the one that makes it is killed: at the least."""


async def test_killed_at_any_moment_the_next_one_completes_it(pair: tuple[Node, Node]) -> None:
    one, two = pair
    cluster, agent_id = Cluster([one, two], vni=4111), f"test-crash-{secrets.token_hex(3)}"
    for reached in POINTS.values():
        async with worker(one.name, one.address, agent_id) as victim:
            assert await victim.call("observed") == []
            path = namespaces.DIRECTORY / await victim.call("namespace", cluster.session_id)
            request = asyncio.create_task(victim.call("ensure", cluster.network(one)))
            # It begins before this looks for the first time.
            await asyncio.sleep(0)
            await eventually(partial(reached, path))
            victim.process.kill()
            with suppress(WorkerError):
                await request
            async with worker(one.name, one.address, agent_id) as successor:
                await successor.call("ensure", cluster.network(one))
                assert await successor.call("ensure", cluster.network(one)) == 0
                await successor.call("remove", cluster.session_id)


async def test_a_large_network_is_one_of_few_batches(pair: tuple[Node, Node]) -> None:
    one, two = pair
    cluster = Cluster([one] * 2 + [two] * 250, vni=4112, subnet="10.128.0.0/24")
    assert await one.call("ensure", cluster.network(one)) > 750
    assert await one.call("ensure", cluster.network(one)) == 0
    assert await two.call("ensure", cluster.network(two)) > 6
    name = await one.call("namespace", cluster.session_id)
    assert run("bridge", "-n", name, "fdb", "show", "dev", "vx0").count("dst 192.0.2.2") == 251
    assert run("ip", "-n", name, "neigh", "show", "dev", "br0").count("PERMANENT") == 250
    await cluster.remove()


async def test_a_new_agent_takes_over_what_the_old_one_made() -> None:
    async with two_nodes() as (one, two), Cluster([one, two], vni=4104).up() as cluster:
        name = await one.call("namespace", cluster.session_id)
        agent_id = name.removeprefix("rt-")[:-33]
        # The second one is another process with the same name; it cleans up when it ends.
        async with worker(one.name, one.address, agent_id) as successor:
            assert await successor.call("observed") == [cluster.session_id]
            assert await successor.call("ensure", cluster.network(one)) == 0
            assert (await asyncio.to_thread(exchange, cluster.kernels[0], cluster.kernels[1], b"hello"))[0] == b"olleh"
        assert not (namespaces.DIRECTORY / name).exists()


async def test_a_kernel_that_died_can_be_followed_by_another(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with Cluster([one, two], vni=4105).up() as cluster:
        main, sub = cluster.kernels
        name = await one.call("namespace", cluster.session_id)
        namespaces.delete(main.namespace)
        await eventually(lambda: "k2" not in link_names(name))
        assert await one.call("ensure", cluster.network(one)) == 0
        namespaces.create(main.namespace, {})
        await one.call("attach", cluster.network(one), main.member.kernel_id, main.path)
        assert (await asyncio.to_thread(exchange, sub, main, b"hello"))[0] == b"olleh"


async def test_a_kernel_is_moved_to_a_new_namespace_while_the_old_one_is_there(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with (
        Cluster([one, two], vni=4106).up() as cluster,
        process_in(cluster.kernels[0].namespace) as pid,
    ):
        main, sub = cluster.kernels
        network = cluster.network(one)
        with namespace("new") as name:
            assert await one.call("attach", network, main.member.kernel_id, f"/proc/{pid}/ns/net") == 0
            await one.call("attach", network, main.member.kernel_id, f"/run/netns/{name}")
            assert link_names(main.namespace) == {"lo"}
            assert (await asyncio.to_thread(exchange, sub, type(main)(main.member, one, name), b"hello"))[0] == b"olleh"
            await one.call("detach", network, main.member.kernel_id)
            await one.call("detach", network, main.member.kernel_id)
            assert link_names(name) == {"lo"}


async def test_removal_does_not_wait_for_a_kernel_that_is_still_there(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with Cluster([one, two], vni=4107).up() as cluster:
        main = cluster.kernels[0]
        async with process_in(main.namespace):
            await one.call("remove", cluster.session_id)
            assert await one.call("observed") == []
            # The VNI is free at once, and the kernel can have its place again, even while its old interface goes away.
            await one.call("ensure", cluster.network(one))
            await one.call("attach", cluster.network(one), main.member.kernel_id, main.path)
            assert (await asyncio.to_thread(exchange, cluster.kernels[0], cluster.kernels[1], b"hello"))[0] == b"olleh"
            await one.call("remove", cluster.session_id)
            await eventually(lambda: link_names(main.namespace) == {"lo"})


async def test_removal_reaches_mount_namespaces_that_follow_the_hosts(pair: tuple[Node, Node]) -> None:
    one, _ = pair
    async with Cluster([one], vni=0).up() as cluster:
        name = await one.call("namespace", cluster.session_id)
        follower = await asyncio.create_subprocess_exec("unshare", "--mount", "--propagation", "slave", "sleep", "1000")
        try:
            await eventually(lambda: Path(f"/proc/{follower.pid}/comm").read_text() == "sleep\n")
            assert name in mounts_of(follower.pid)
            await one.call("remove", cluster.session_id)
            assert name not in mounts_of(follower.pid)
        finally:
            follower.kill()
            await follower.wait()


async def test_agents_on_one_host_leave_each_other_alone(pair: tuple[Node, Node]) -> None:
    one, _ = pair
    long = f"a-name-that-is-longer-than-twenty-characters-{secrets.token_hex(3)}"
    async with (
        worker(one.name, one.address, f"{long}-1") as first,
        worker(one.name, one.address, f"{long}-2") as second,
    ):
        session = Cluster([first], vni=0)
        other = Cluster([first], vni=0)
        other.session_id = session.session_id
        await first.call("ensure", session.network(first))
        assert await second.call("observed") == []
        await second.call("ensure", other.network(first))
        await second.call("remove", session.session_id)
        assert await first.call("observed") == [session.session_id]
        names = {await node.call("namespace", session.session_id) for node in (one, first, second)}
        assert len(names) == 3


async def test_errors_say_what_is_wrong() -> None:
    async with two_nodes() as (one, two), Cluster([one, two], vni=4108).up() as cluster:
        network = cluster.network(one)
        main = cluster.kernels[0]
        with pytest.raises(WorkerError, match="NetworkError: cannot make the VXLAN device with VNI 4108: File exists"):
            await one.call("ensure", Cluster([one, two], vni=4108).network(one))
        absent = Cluster([one], vni=0).network(one)
        with pytest.raises(WorkerError, match="NetworkError: there is no network yet"):
            await one.call("attach", absent, absent.members[0].kernel_id, main.path)
        with pytest.raises(WorkerError, match="InvalidNetworkError: kernel other has no place"):
            await one.call("attach", network, "other", main.path)
        with pytest.raises(
            WorkerError, match="NetworkError: cannot open network namespace /proc/4194305/ns/net: No such file"
        ):
            await one.call("attach", network, main.member.kernel_id, "/proc/4194305/ns/net")
        with pytest.raises(WorkerError, match=r"InvalidNetworkError: .* not a namespace of a kernel's own"):
            await one.call("attach", network, main.member.kernel_id, f"/run/netns/{one.name}")
        with pytest.raises(WorkerError, match="NetworkError: cannot open network namespace /proc/self/ns/mnt"):
            await one.call("attach", network, main.member.kernel_id, "/proc/self/ns/mnt")
        with pytest.raises(WorkerError, match=r"InvalidNetworkError: MTU 1451 .* leaves 1450"):
            await one.call("ensure", Cluster([one, two], vni=4109, mtu=1451).network(one))
        with pytest.raises(WorkerError, match="InvalidNetworkError: session id"):
            await one.call("remove", "../../etc")
        await one.call("remove", str(uuid.uuid4()))


async def test_uplinks() -> None:
    async with two_nodes() as (one, _):
        found = await one.call("uplink", "192.0.2.1")
        assert (found["name"], found["address"], found["mtu"]) == ("up0", "192.0.2.1", 1500)
        assert await one.call("uplink") == found
        with pytest.raises(WorkerError, match="no interface of this node has the underlay address"):
            await one.call("uplink", "192.0.2.77")
        with pytest.raises(WorkerError, match="underlay address: 'nonsense'"):
            await one.call("uplink", "nonsense")
        run("ip", "-n", one.name, "link", "add", "other0", "type", "bridge")
        run("ip", "-n", one.name, "addr", "add", "198.51.100.1/24", "dev", "other0")
        run("ip", "-n", one.name, "addr", "add", "198.51.100.2/24", "dev", "other0")
        run("ip", "-n", one.name, "link", "set", "other0", "up")
        run("ip", "-n", one.name, "route", "add", "default", "dev", "other0", "src", "198.51.100.2")
        assert (await one.call("uplink"))["address"] == "198.51.100.2"
        run("ip", "-n", one.name, "link", "set", "up0", "mtu", "600")
        with pytest.raises(WorkerError, match="has an MTU of 600; VXLAN needs 626 or more"):
            await one.call("uplink", "192.0.2.1")
        run("ip", "-n", one.name, "link", "set", "up0", "down")
        with pytest.raises(WorkerError, match="is down"):
            await one.call("uplink", "192.0.2.1")


async def test_an_uplink_that_was_replaced_is_found_again() -> None:
    async with two_nodes() as (one, two), Cluster([one, two], vni=4110).up() as cluster:
        run("ip", "-n", one.name, "link", "del", "up0")
        with pytest.raises(WorkerError, match="no interface of this node has the underlay address"):
            await one.call("ensure", cluster.network(one))
        run("ip", "link", "add", "up0", "netns", one.name, "type", "veth", "peer", "up0", "netns", two.name)
        for node in (one, two):
            run("ip", "-n", node.name, "addr", "add", f"{node.address}/24", "dev", "up0")
            run("ip", "-n", node.name, "link", "set", "up0", "up")
            assert await node.call("ensure", cluster.network(node)) > 0
        assert (await asyncio.to_thread(exchange, cluster.kernels[0], cluster.kernels[1], b"hello"))[0] == b"olleh"


async def test_many_sessions_at_once(pair: tuple[Node, Node]) -> None:
    one, two = pair
    clusters = [Cluster([one, two], vni=4200 + number) for number in range(16)]
    await asyncio.gather(*(node.call("ensure", cluster.network(node)) for cluster in clusters for node in (one, two)))
    assert len(await one.call("observed")) == len(clusters)
    # The same again and removal at the same time: one waits for the other, and the end is one of the two.
    answers = await asyncio.gather(
        *(one.call("ensure", cluster.network(one)) for cluster in clusters),
        *(one.call("remove", cluster.session_id) for cluster in clusters),
        return_exceptions=True,
    )
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    await asyncio.gather(*(node.call("remove", cluster.session_id) for cluster in clusters for node in (one, two)))
    assert await one.call("observed") == await two.call("observed") == []


def neighbours(name: str) -> list[str]:
    return run("ip", "-n", name, "neigh", "show").splitlines()


async def test_hundreds_of_sessions_leave_nothing_behind() -> None:
    """Each on two nodes; every twentieth with kernels in their places."""
    async with two_nodes() as (one, two):
        nodes = (one, two)

        async def cycle(number: int) -> None:
            cluster = Cluster([one, one, two], vni=4300 + number % 40)
            if number % 20 == 0:
                async with cluster.up():
                    return
            try:
                await asyncio.gather(*(node.call("ensure", cluster.network(node)) for node in nodes))
            finally:
                await asyncio.gather(*(node.call("remove", cluster.session_id) for node in nodes))

        async def present() -> list[object]:
            """What could be left: descriptors and threads of the processes, and what their namespaces hold."""
            found: list[object] = []
            for node in nodes:
                inner = ("ip", "netns", "exec", node.name)
                found += [
                    await node.call("descriptors"),
                    link_names(node.name),
                    run("bridge", "-n", node.name, "fdb", "show"),
                    run(*inner, "nft", "list", "ruleset"),
                    # Those of the nodes' own link come and go with its traffic.
                    {line.split()[0] for line in neighbours(node.name) if " dev up0 " not in line},
                ]
            return found

        labels = {(await node.call("namespace", str(uuid.uuid4())))[:-32] for node in nodes}
        # Threads of pools stay once they are there.
        await asyncio.gather(*(cycle(number) for number in range(20)))
        before, threads = await present(), [await node.call("threads") for node in nodes]
        for start in range(0, 200, 20):
            await asyncio.gather(*(cycle(number) for number in range(start, start + 20)))
        assert await present() == before
        for node, number in zip(nodes, threads, strict=True):
            assert await node.call("threads") <= number + 8
        assert not [name for name in namespaces.names() if any(label in name for label in labels)]
        for node in nodes:
            await eventually(partial(no_vxlan_socket, node.name))
