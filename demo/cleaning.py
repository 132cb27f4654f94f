"""Part 5: everything is ended, and nothing of it is left on the nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rich.table import Table

from retinue.devtools.threads import in_thread

if TYPE_CHECKING:
    from demo.stage import Stage
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

_SECONDS = 30.0


async def show(stage: Stage, cluster: Cluster, client: Client) -> None:
    """Ends all sessions and looks at the nodes. Raises DemoError, RetinueError."""
    stage.heading("5. All is ended, and the nodes are clean")
    living = [session async for session in client.sessions.list()]
    await asyncio.gather(*(session.terminate() for session in living))
    await asyncio.gather(*(session.wait_ended(timeout=_SECONDS) for session in living))
    stage.check(not [session async for session in client.sessions.list()], f"{len(living)} sessions ended; none lives")
    await cluster.wait_clean(_SECONDS)
    found = {agent.id: await in_thread(cluster.find_leftovers, agent) for agent in cluster.agents}
    kinds = list(next(iter(found.values())).counts())
    table = Table("agent", *kinds, box=None, padding=(0, 3, 0, 3))
    for agent, left in found.items():
        table.add_row(agent, *(str(count) for count in left.counts().values()))
    stage.console.print(table)
    stage.check(all(left.is_clean for left in found.values()), f"nothing is left on {len(found)} nodes")
    for group in ("default", "paper"):
        stage.check(not await client.resource_groups.shares(group), f"no owner holds anything of the group {group}")
