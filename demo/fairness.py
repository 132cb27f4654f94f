"""Part 2: three owners ask for more than there is, and are served as the paper says."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from fractions import Fraction
from typing import TYPE_CHECKING

from rich.table import Table

from demo import paper
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from demo.stage import Stage
    from retinue.client.aio import Client, Session
    from retinue.devtools.cluster import Cluster

GROUP = "paper"
# Twice the paper's cluster of 9 CPU and 18 GB; ada and ben ask for what its owners A and B ask for.
CAPACITY = {"cpu": 18, "mem": 36}
DEMANDS = {"ada": {"cpu": 1, "mem": 4}, "ben": {"cpu": 3, "mem": 1}, "cyd": {"cpu": 1, "mem": 5}}
TASKS = 6
_SECONDS = 60.0


async def show(stage: Stage, cluster: Cluster, administrator: Client) -> None:
    """Submits, lets the node join, and compares order and shares. Raises DemoError, RetinueError, TimeoutError."""
    wishes = ", ".join(f"{owner} {_text(demand)}" for owner, demand in DEMANDS.items())
    stage.heading(f"2. Three owners ask for {TASKS} kernels each of {_text(CAPACITY)}")
    stage.say(f"each kernel wants: {wishes}")
    await administrator.resource_groups.create(GROUP, session_strategy="drf")
    async with AsyncExitStack() as stack:
        submitted = await _submit(stage, cluster, administrator, stack)
        revision = max(session.revision or 0 for session in submitted.values())
        join = await administrator.agents.create_join_token(resource_group=GROUP)
        stage.say(f"{len(submitted)} sessions wait; now a node of that size joins the group {GROUP}")
        slots = {"cpu": str(CAPACITY["cpu"]), "mem": f"{CAPACITY['mem']}g"}
        joining = asyncio.create_task(cluster.add_agent(slots, join.token))
        try:
            expected = paper.fill(_exact(CAPACITY), {owner: _exact(demand) for owner, demand in DEMANDS.items()}, TASKS)
            served = await _served(administrator, submitted, revision, len(expected.order))
        finally:
            await joining
        # If the paper leaves the choice open, follow the manager's.
        expected = paper.fill(
            _exact(CAPACITY), {owner: _exact(demand) for owner, demand in DEMANDS.items()}, TASKS, preferred=served
        )
        _compare_order(stage, served, expected)
        await _compare_shares(stage, administrator, expected)
        waiting = [session async for session in administrator.sessions.list(filter=_filter("PENDING"))]
        stage.check(
            len(waiting) == len(submitted) - len(served), f"the other {len(waiting)} wait: {waiting[0].view.message}"
        )
        await _end(administrator)


async def _submit(stage: Stage, cluster: Cluster, administrator: Client, stack: AsyncExitStack) -> dict[str, Session]:
    """Returns each owner's sessions, asked for by the owner, by id."""
    submitted = {}
    for owner, demand in DEMANDS.items():
        await administrator.users.create(owner, projects={"default": "member"})
        token = await administrator.tokens.create(user=owner, description="demonstration")
        client = await stack.enter_async_context(cluster.client(token.secret))
        stage.say(f"{(await client.users.caller()).name} asks for {TASKS} times {_text(demand)}")
        for number in range(1, TASKS + 1):
            session = await client.sessions.create(
                type="interactive",
                name=f"{owner}-{number}",
                resource_group=GROUP,
                slots={"cpu": str(demand["cpu"]), "mem": f"{demand['mem']}g"},
                # Nothing in these kernels needs time to say goodbye.
                termination_grace=1.0,
            )
            submitted[session.id] = session
    return submitted


async def _served(client: Client, submitted: Mapping[str, Session], revision: int, count: int) -> list[str]:
    """Owners in the order in which their sessions were placed, from the journal; nothing more may be placed after."""
    served = []
    async with asyncio.timeout(_SECONDS), aclosing(client.sessions.watch(after_revision=revision)) as events:
        async for event in events:
            moved = event.session_moved.to_state == session_pb2.SESSION_STATE_SCHEDULED
            if event.WhichOneof("change") == "session_moved" and moved and event.session_id in submitted:
                served.append(submitted[event.session_id].view.owner)
                if len(served) == count:
                    break
    return served


def _compare_order(stage: Stage, served: list[str], expected: paper.Filling) -> None:
    table = Table("place", "served", "the paper's choice", box=None, padding=(0, 3, 0, 3), title_justify="left")
    for place, (owner, tie) in enumerate(zip(served, expected.ties, strict=False), start=1):
        table.add_row(str(place), owner, " or ".join(sorted(tie)))
    stage.console.print(table)
    stage.check(tuple(served) == expected.order, f"served in the paper's order: {' '.join(served)}")


async def _compare_shares(stage: Stage, client: Client, expected: paper.Filling) -> None:
    shares = {share.owner: share for share in await client.resource_groups.shares(GROUP)}
    table = Table("owner", "kernels", "in the database", "of", "in the paper", box=None, padding=(0, 3, 0, 3))
    found = {}
    for owner in sorted(expected.shares):
        share = shares[owner]
        found[owner] = Fraction(share.numerator, share.denominator)
        table.add_row(
            owner, str(expected.tasks[owner]), str(found[owner]), share.dominant_slot, str(expected.shares[owner])
        )
    stage.console.print(table)
    stage.check(found == dict(expected.shares), "the shares in the database are the paper's")


async def _end(administrator: Client) -> None:
    """Ends the part's sessions; waiting ones first, so that none takes the place of another that ends."""
    for state in ("PENDING", "RUNNING"):
        ending = [session async for session in administrator.sessions.list(filter=_filter(state))]
        await asyncio.gather(*(session.terminate(force=True) for session in ending))
    left = [session async for session in administrator.sessions.list(filter=f'resource_group = "{GROUP}"')]
    await asyncio.gather(*(session.terminate(force=True) for session in left))
    await asyncio.gather(*(session.wait_ended(timeout=_SECONDS) for session in left))


def _filter(state: str) -> str:
    return f'resource_group = "{GROUP}" AND state = "{state}"'


def _exact(amounts: Mapping[str, int]) -> dict[str, Fraction]:
    return {resource: Fraction(amount) for resource, amount in amounts.items()}


def _text(amounts: Mapping[str, int]) -> str:
    return f"<{amounts['cpu']} CPU, {amounts['mem']} GB>"
