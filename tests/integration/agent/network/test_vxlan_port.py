"""Networks of sessions beside VXLAN of others, who have the usual port: Open vSwitch and flannel make such devices."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.integration.agent.network.nodes import Cluster, Node, WorkerError, exchange, run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWN = 14789


@contextmanager
def external(node: Node, port: int) -> Iterator[None]:
    """A VXLAN device of another program on a node, as Open vSwitch makes them."""
    run("ip", "-n", node.name, "link", "add", "ovs0", "type", "vxlan", "external", "dstport", str(port))
    try:
        run("ip", "-n", node.name, "link", "set", "ovs0", "up")
        yield
    finally:
        run("ip", "-n", node.name, "link", "del", "ovs0")


async def passes(cluster: Cluster) -> bool:
    main, sub = cluster.kernels
    return (await asyncio.to_thread(exchange, main, sub, b"hello"))[0] == b"olleh"


async def test_a_port_that_another_has_is_named_and_a_port_of_the_clusters_own_passes(pair: tuple[Node, Node]) -> None:
    one, two = pair
    with external(one, 4789):
        usual = Cluster([one, two], vni=4401)
        with pytest.raises(WorkerError, match="UDP port 4789, for VXLAN between nodes, is in use"):
            async with usual.up():
                pass
        async with Cluster([one, two], vni=4402, port=OWN).up() as cluster:
            assert await passes(cluster)


async def test_devices_of_others_come_and_go_beside_a_network(pair: tuple[Node, Node]) -> None:
    one, two = pair
    async with Cluster([one, two], vni=4403, port=OWN).up() as cluster:
        with external(one, 4789), external(two, 8472):
            assert await passes(cluster)
        assert await passes(cluster)
    async with Cluster([one, two], vni=4404).up():
        with pytest.raises(subprocess.CalledProcessError), external(one, 4789):
            pass


async def test_networks_keep_the_port_that_they_were_made_with(pair: tuple[Node, Node]) -> None:
    one, two = pair
    former = Cluster([one, two], vni=4405)
    async with former.up(), Cluster([one, two], vni=4406, subnet="10.128.0.16/28", port=OWN).up() as later:
        assert await passes(former)
        assert await passes(later)
        for cluster in (former, later):
            assert await one.call("ensure", cluster.network(one)) == 0
