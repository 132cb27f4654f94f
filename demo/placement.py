"""Part 3: what gets a bridge, what waits and why, and what a failure looks like."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from retinue.client import enum_names
from retinue.devtools import leftovers, nodes
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from demo.stage import Stage
    from retinue.client.aio import Client, Session
    from retinue.devtools.cluster import Cluster

_SECONDS = 60.0
_EXIT_CODE = 3


async def show(stage: Stage, cluster: Cluster, client: Client) -> list[Session]:
    """Shows the three cases; returns the sessions that still live. Raises DemoError, RetinueError."""
    stage.heading("3. A cluster that fits one node, one that fits none, and one that fails")
    together = await _together(stage, cluster, client)
    waiting = await _waiting(stage, client)
    await _failing(stage, client)
    return [together, waiting]


async def _together(stage: Stage, cluster: Cluster, client: Client) -> Session:
    session = await client.sessions.create(
        type="interactive",
        name="together",
        cluster_size=3,
        cluster_mode="multi-node",
        slots={"cpu": "1", "mem": "256m"},
    )
    await stage.follow(session, until_running=True)
    agents = {kernel.agent for kernel in session.kernels}
    stage.check(len(agents) == 1, f"multi-node, and all three kernels are on {', '.join(agents)}")
    stage.check(session.view.network == session_pb2.NETWORK_KIND_BRIDGE, "the manager calls their network a bridge")
    agent = next(agent for agent in cluster.agents if agent.id in agents)
    networks = leftovers.network_namespaces(agent.id)
    places = [*networks, *([agent.node.namespace] if agent.node is not None else [])]
    found = {kind: await asyncio.to_thread(_links, places, kind) for kind in ("bridge", "vxlan", "veth")}
    stage.say(f"links found in {', '.join(places)}: {found}")
    stage.check(len(found["bridge"]) == 1, "on the node there is one bridge")
    stage.check(not found["vxlan"], "on the node there is no VXLAN")
    return session


def _links(namespaces: list[str], kind: str) -> list[str]:
    return [link for name in namespaces for link in nodes.links_of_kind(name, kind)]


async def _waiting(stage: Stage, client: Client) -> Session:
    session = await client.sessions.create(
        type="interactive", name="too-big", cluster_size=3, cluster_mode="single-node", slots={"cpu": "4"}
    )
    # The first event after the creation is the scheduler's word on it.
    async with asyncio.timeout(_SECONDS), aclosing(session.progress()) as steps:
        async for step in steps:
            if step.view.reason not in ("", "QUEUED"):
                break
    answer = await session.explain()
    stage.check(session.state == "PENDING", f"single-node, 12 CPU together, and no node has as many: {session.state}")
    tier = enum_names.name_of(enum_names.REASON_TIER, answer.tier).lower()
    stage.check(answer.reason and answer.message, f"its reason: {answer.reason} ({tier}): {answer.message}")
    return session


async def _failing(stage: Stage, client: Client) -> None:
    command = ["sh", "-c", f"echo this fails >&2; exit {_EXIT_CODE}"]
    session = await client.sessions.create(type="batch", name="failing", command=command)
    await stage.follow(session)
    stage.check(
        (session.result, session.exit_code) == ("FAILED", _EXIT_CODE),
        f"the failing batch session ended {session.result} with exit code {session.exit_code}",
    )
