"""What ends sessions of virtual machines by themselves: a time limit, and a group's policy on idle ones."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from retinue.manager.v1 import idle_pb2 as pb
from tests.integration.sessions.idle_policies import check_of, no_policy_afterwards, seconds
from tests.integration.sessions.inside import shell, until_printed
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client, Session

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOTS = {"cpu": "1", "mem": "256m"}
BUSY = "cd; echo on; until [ -e rest ]; do :; done; exec sleep 1000"


@pytest_asyncio.fixture(loop_scope="session")
async def group(client: Client) -> AsyncIterator[str]:
    """The group whose policy a test sets; it has none afterwards."""
    async with no_policy_afterwards(client) as name:
        yield name


async def started(client: Client, *command: str, **values: Any) -> Session:
    session = await client.sessions.create(command=command, isolation="vm", slots=SLOTS, termination_grace=0, **values)
    return await session.wait("RUNNING", timeout=NEVER)


def ended_below(percent: float, *, window: float) -> pb.IdlePolicy:
    """A policy that ends what uses less of its processors than this, in as many seconds."""
    policy = pb.UtilizationPolicy(window=seconds(window), thresholds={"cpu": percent})
    return pb.IdlePolicy(warning=seconds(1), utilization=policy)


async def test_machines_end_by_their_time_and_by_policy(client: Client, group: str) -> None:
    limited, busy = await asyncio.gather(
        # Counted from its start, not from when it began to boot.
        started(client, "sleep", "1000", type="batch", time_limit=1),
        started(client, "sh", "-c", BUSY, type="interactive"),
    )
    # Use is observed from the time that a policy wants it, and by then it computes.
    await until_printed(busy, b"on")
    # A machine that idles uses less than one per cent, and a busy one more than five over minutes,
    # however much else runs here.
    await client.resource_groups.update(group, idle_policy=ended_below(5.0, window=120))

    async def used() -> float:
        assert (await busy.refresh()).state == "RUNNING"
        check = check_of(busy.view, pb.IDLE_CHECKER_UTILIZATION)
        found = re.match(r"it used cpu (\S+) %", check.measured)
        return 0.0 if found is None or check.status != pb.IDLE_STATUS_COUNTING else float(found[1])

    # All that QEMU uses is the guest's use.
    await eventually(used, lambda percent: percent >= 5)
    await shell(busy, "touch rest")
    await client.resource_groups.update(group, idle_policy=ended_below(5.0, window=3))
    await busy.wait_ended(NEVER)
    assert (await busy.refresh()).view.message.startswith("it used cpu ")
    await limited.wait_ended(NEVER)
    assert ((await limited.refresh()).view.reason, limited.result) == ("TIME_LIMIT_EXCEEDED", "FAILED")
