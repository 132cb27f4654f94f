"""Egress of sessions on real nodes: the outside world is reached, and nothing that belongs to the platform."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from tests.integration.agent.inside.reach import FORBIDDEN, PROBE, PUBLIC, outside, protected
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def probes(client: Client, places: list[str], **options: object) -> dict[str, dict[str, str]]:
    """What each kernel of a session found at the places, by host name."""
    command = ["/usr/bin/python3", "-c", PROBE, *places]
    session = await client.sessions.create(type="batch", command=command, sub_command=command, **options)  # type: ignore[arg-type]
    await session.wait("RUNNING", timeout=NEVER)
    names = [kernel.hostname for kernel in session.kernels]
    await session.wait_ended(NEVER)
    found = {}
    for name in names:
        text = b"".join([chunk.data async for chunk in client.sessions.logs(session.id, name)]).decode()
        if name == "main1" or text:
            found[name] = json.loads(text)
    return found


@pytest.mark.attack("platform-from-a-kernel")
@pytest.mark.parametrize("size", [1, 2])
async def test_kernels_reach_the_outside_and_no_part_of_the_platform(
    client: Client, cluster: Cluster, size: int
) -> None:
    with outside(cluster) as host:
        public, forbidden = f"{PUBLIC}:{host.port}", protected(cluster)
        # Each address answers those that are allowed to reach it.
        for place in forbidden:
            address, _, port = place.rpartition(":")
            socket.create_connection((address, int(port)), NEVER).close()
        found = await probes(client, [public, FORBIDDEN, *forbidden], cluster_size=size, cluster_mode="multi-node")
        assert "main1" in found
        nodes = {agent.node.address for agent in cluster.agents if agent.node is not None}
        for answers in found.values():
            assert answers.pop(public) in nodes
            assert set(answers.values()) == {"ConnectionRefusedError"}


async def test_a_group_may_deny_egress(client: Client, cluster: Cluster) -> None:
    await client.resource_groups.update("default", egress="deny")
    try:
        with outside(cluster) as host:
            found = await probes(client, [FORBIDDEN, f"{PUBLIC}:{host.port}", *protected(cluster)[:1]])
            assert set(found["main1"].values()) == {"OSError"}
            assert not host.callers
    finally:
        await client.resource_groups.update("default", egress="allow")


async def test_an_egress_link_goes_with_its_kernel_also_amid_a_conversation(client: Client, cluster: Cluster) -> None:
    connect = "c = socket.create_connection((sys.argv[1], int(sys.argv[2]))); print(c.recv(100), flush=True)"
    talk = f"import socket, sys, time; {connect}; time.sleep(1000)"
    with outside(cluster) as host:
        command = ["/usr/bin/python3", "-c", talk, PUBLIC, str(host.port)]
        session = await client.sessions.create(type="interactive", command=command, termination_grace=0)
        async with aclosing(session.logs(follow=True)) as chunks, asyncio.timeout(NEVER):
            await anext(chunks)
    # Linux continues for minutes to report the end of the connection to the other side,
    # and keeps the kernel's namespace for it.
    await session.terminate(force=True)
    await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)
