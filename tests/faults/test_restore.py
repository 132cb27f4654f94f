"""The database goes back to a backup while kernels run: agents follow, nothing that runs is ended for being newer,
watches end.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.errors import NotFound, OutOfRange
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.v1 import fleet_service_pb2
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

# How long commands of kernels sleep, which are looked for by that: no other one of this machine does.
KEPT, ENDING, WAITING, NEWER = (str(number + secrets.randbelow(10**9)) for number in range(10**9, 5 * 10**9, 10**9))


@pytest_asyncio.fixture(loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    """A cluster of its own: attempts of a restored one are numbered from its restore on,
    and its agents are trusted less.
    """
    async with Cluster(options=ClusterOptions(agents=2, prefix="rt-restore-")) as cluster:
        yield cluster


def has_orphans(agent: fleet_service_pb2.Agent) -> bool:
    return fleet_service_pb2.AGENT_CONDITION_TYPE_ORPHANS in {condition.type for condition in agent.conditions}


async def admin(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "retinue.manager.main", "admin", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def runs(seconds: str) -> bool:
    """Whether the command of a kernel, `sleep` so long, runs on this machine."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if process.read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
        except OSError:
            continue
    return False


async def test_agents_follow_a_restored_database(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    ids = [agent.id for agent in cluster.agents]
    kept = await client.sessions.create(type="interactive", command=["sleep", KEPT], slots={"cpu": "1"})
    ending = await client.sessions.create(type="interactive", command=["sleep", ENDING], slots={"cpu": "1"})
    for session in (kept, ending):
        await session.wait("RUNNING", timeout=NEVER)
    for agent_id in ids:
        await client.agents.drain(agent_id)
    waiting = await client.sessions.create(type="interactive", command=["sleep", WAITING], slots={"cpu": "1"})
    file, data = str(tmp_path / "backup"), ("--data-dir", str(cluster.directory / "manager"))
    await admin("backup", file, *data)

    for agent_id in ids:
        await client.agents.undrain(agent_id)
    await waiting.wait("RUNNING", timeout=NEVER)
    newer = await client.sessions.create(type="interactive", command=["sleep", NEWER], slots={"cpu": "1"})
    await newer.wait("RUNNING", timeout=NEVER)
    await ending.terminate()
    await ending.wait_ended(NEVER)
    lost = await newer.refresh()

    await cluster.manager.stop()
    assert "good" in await admin("verify", file)
    assert "restored" in await admin("restore", file, *data, "--replace")
    await cluster.start_manager()

    async def orphans() -> list[fleet_service_pb2.Orphan]:
        return [orphan async for orphan in client.agents.orphans()]

    found = await eventually(orphans, lambda found: len(found) == 2)
    assert {orphan.session_id for orphan in found} == {waiting.id, newer.id}
    with pytest.raises(NotFound):
        await client.sessions.get(newer.id)
    async with aclosing(client.sessions.watch(after_revision=lost.revision, incarnation=lost.incarnation)) as events:
        with pytest.raises(OutOfRange) as caught:
            await anext(events)
    assert caught.value.reason == "REVISION_LOST"
    # What ended since the backup is found to have.
    ended = await client.sessions.get(ending.id)
    assert (await ended.wait_ended(NEVER)).is_ended
    again = await client.sessions.get(kept.id)
    assert again.state == "RUNNING"

    # What runs already is not placed a second time.
    for agent_id in ids:
        await client.agents.undrain(agent_id)
    blocked = {orphan.agent for orphan in found}
    for agent_id in blocked:
        await eventually(partial(client.agents.get, agent_id), has_orphans)
    # The queue is looked at after that: a session that came later has been placed, or waits with a reason.
    later = await client.sessions.create(type="batch", command=["true"], slots={"cpu": "0.1", "mem": "32m"})

    async def looked_at() -> bool:
        return (await later.refresh()).state != "PENDING" or (await later.explain()).reason not in {"", "QUEUED"}

    await eventually(looked_at)
    held = await client.sessions.get(waiting.id)
    assert held.state == "PENDING"
    assert all(runs(seconds) for seconds in (KEPT, WAITING, NEWER))
    for agent_id in blocked:
        assert await client.agents.end_orphans(agent_id)
    await held.wait("RUNNING", timeout=NEVER)
    await later.wait_ended(NEVER)
    await eventually(orphans, [].__eq__)
    await eventually(lambda: asyncio.to_thread(runs, NEWER), lambda found: not found)
    for session in (again, held):
        await session.terminate()
        await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)
