"""What ends sessions of virtual machines by themselves: a time limit, and a group's policy on idle ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from retinue.client.aio import Client, Session
from retinue.manager.v1 import idle_pb2 as pb
from tests.integration.sessions.test_idle import check_of, run, seconds
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

# A machine boots in four seconds on a node that does nothing else, and without KVM all in it is slow.
WAIT = 600.0
SLOTS = {"cpu": "1", "mem": "256m"}
BUSY = "cd; until [ -e rest ]; do :; done; exec sleep 1000"


@pytest_asyncio.fixture(loop_scope="session")
async def group(client: Client) -> AsyncIterator[str]:
    """The group whose policy a test sets; it has none afterwards."""
    yield "default"
    await client.resource_groups.update("default", idle_policy=pb.IdlePolicy())
    async for session in client.sessions.list():
        await session.terminate(force=True)
        await session.wait_ended(WAIT)


async def started(client: Client, *command: str, **values: Any) -> Session:
    session = await client.sessions.create(command=command, isolation="vm", slots=SLOTS, termination_grace=0, **values)
    return await session.wait("RUNNING", timeout=WAIT)


async def test_machines_end_by_their_time_and_by_policy(client: Client, group: str) -> None:
    limited, busy = await asyncio.gather(
        # Counted from its start, not from when it began to boot.
        started(client, "sleep", "1000", type="batch", time_limit=1),
        started(client, "sh", "-c", BUSY, type="interactive"),
    )
    # A machine that idles uses less than one per cent, and a busy one more than five, however much else runs here.
    policy = pb.UtilizationPolicy(window=seconds(3), thresholds={"cpu": 5.0})
    await client.resource_groups.update(group, idle_policy=pb.IdlePolicy(warning=seconds(1), utilization=policy))

    async def counted() -> pb.IdleCheck:
        assert (await busy.refresh()).state == "RUNNING"
        return check_of(busy.view, pb.IDLE_CHECKER_UTILIZATION)

    # All that QEMU uses is the guest's use.
    await eventually(counted, lambda check: check.status == pb.IDLE_STATUS_COUNTING, seconds=WAIT)
    await run(busy, ["touch", "rest"])
    await busy.wait_ended(WAIT)
    assert (await busy.refresh()).view.message.startswith("it used cpu ")
    await limited.wait_ended(WAIT)
    assert ((await limited.refresh()).view.reason, limited.result) == ("TIME_LIMIT_EXCEEDED", "FAILURE")
