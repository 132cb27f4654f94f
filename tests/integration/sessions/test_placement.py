"""What a session asks of agents and of time, on real nodes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import InvalidRequest
from retinue.manager.v1.fleet_service_pb2 import MountRoot
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.client.words import AgentChoice, ReplicaPlacement
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_strict_and_preferred_agents(client: Client, cluster: Cluster) -> None:
    first, second = (agent.id for agent in cluster.agents)
    choices: list[tuple[str, AgentChoice]] = [(first, "strict"), (second, "strict"), (second, "preferred")]
    sessions = [
        await client.sessions.create(type="interactive", agents=[agent], agent_choice=choice)
        for agent, choice in choices
    ]
    for session in sessions:
        await session.wait("RUNNING", timeout=NEVER)
    assert [session.kernels[0].agent for session in sessions] == [first, second, second]
    assert list(sessions[0].view.spec.agents) == [first]
    for session in sessions:
        await session.terminate()
        await session.wait_ended(NEVER)
    with pytest.raises(InvalidRequest, match=r"spec.agents\[1\]"):
        await client.sessions.create(type="interactive", agents=[first, "elsewhere"])


async def test_replicas_of_an_endpoint_spread_or_pack(client: Client) -> None:
    placements: list[tuple[ReplicaPlacement, int]] = [("spread", 2), ("pack", 1)]
    for placement, agents in placements:
        sessions = [
            await client.sessions.create(type="interactive", endpoint=placement, replica_placement=placement)
            for _ in range(2)
        ]
        for session in sessions:
            await session.wait("RUNNING", timeout=NEVER)
        assert len({session.kernels[0].agent for session in sessions}) == agents
        for session in sessions:
            await session.terminate()
            await session.wait_ended(NEVER)


async def test_two_kernels_whose_disks_exceed_the_node_run_one_after_the_other(
    client: Client, cluster: Cluster
) -> None:
    node = cluster.agents[0].id
    first, second = [
        await client.sessions.create(
            type="interactive", agents=[node], agent_choice="strict", slots={"cpu": "0.1", "disk": "40g"}
        )
        for _ in range(2)
    ]
    await first.wait("RUNNING", timeout=NEVER)
    async with asyncio.timeout(NEVER):
        async for event in client.sessions.watch(after_revision=second.revision, session_id=second.id):
            if event.HasField("reason_changed"):
                break
    explanation = await client.sessions.explain(second.id)
    assert explanation.reason == "INSUFFICIENT_CAPACITY"
    assert f"needs 40g disk on one node; the freest has 24g ({node})" in explanation.message
    assert [(short.slot, short.requested) for short in explanation.shortfalls] == [("disk", "40g")]
    await first.terminate()
    await second.wait("RUNNING", timeout=NEVER)
    await second.terminate()
    await second.wait_ended(NEVER)


async def test_a_kernel_has_the_default_of_the_disk(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["df", "-k", "."])
    assert session.kernels[0].slots["disk"] == "1g"
    await session.wait_ended(NEVER)
    printed = b"".join([chunk.data async for chunk in client.sessions.logs(session.id)])
    size = int(printed.splitlines()[-1].split()[1]) << 10
    assert 1 << 30 <= size <= 1.1 * (1 << 30)


async def test_an_architecture_that_no_agent_has(client: Client) -> None:
    session = await client.sessions.create(type="interactive", architecture="riscv64")
    async for event in client.sessions.watch(after_revision=session.revision, session_id=session.id):
        if event.HasField("reason_changed"):
            break
    assert (await client.sessions.explain(session.id)).reason == "ARCHITECTURE_MISSING"
    await session.terminate()


async def test_a_time_limit_is_kept(client: Client) -> None:
    session = await client.sessions.create(
        type="batch", command=["sleep", "1000"], time_limit=1.0, termination_grace=1.0
    )
    await session.wait_ended(NEVER)
    assert (session.state, session.result) == ("TERMINATED", "FAILED")
    assert session.view.reason == "TIME_LIMIT_EXCEEDED"


async def test_a_check_shows_where_a_session_would_be_placed(client: Client, cluster: Cluster) -> None:
    agents = {agent.id for agent in cluster.agents}
    fits = await client.sessions.check(type="interactive", cluster_size=2, slots={"cpu": "1", "mem": "64m"})
    assert [kernel.hostname for kernel in fits.kernels] == ["main1", "sub1"]
    assert {kernel.agent for kernel in fits.kernels} <= agents
    huge = await client.sessions.check(type="interactive", slots={"cpu": "1000", "mem": "64m"})
    assert not huge.kernels
    assert huge.reason == "EXCEEDS_LARGEST_AGENT"
    assert huge.shortfalls[0].slot == "cpu"

    async def left() -> list[str]:
        return [session.id async for session in client.sessions.list()]

    # Nothing was made; what a test before this one has terminated may be listed for a moment.
    await eventually(left, [].__eq__)


async def test_a_slot_that_no_agent_has_is_refused_at_once(client: Client) -> None:
    slots = {"cpuu": "2", "tpu.device": "1", "mem": "64m"}
    for create in (client.sessions.create, client.sessions.check):
        with pytest.raises(InvalidRequest) as refused:
            await create(type="interactive", slots=slots)
        assert [(wrong.field, wrong.description) for wrong in refused.value.violations] == [
            ("spec.kernel.slots['cpuu']", "no agent has such a slot, did you mean cpu? there are cpu, disk, mem"),
            ("spec.kernel.slots['tpu.device']", "no agent has such a slot; there are cpu, disk, mem"),
        ]
    # Who limits it expects agents that have it.
    await client.quotas.set("resource-group", "default", slots={"tpu.device": "8"})
    try:
        checked = await client.sessions.check(type="interactive", slots={"tpu.device": "1"})
        assert checked.reason == "EXCEEDS_LARGEST_AGENT"
    finally:
        await client.quotas.set("resource-group", "default")


async def test_an_explanation_says_what_would_start_now(client: Client, cluster: Cluster) -> None:
    session = await client.sessions.create(type="interactive", slots={"cpu": "1000", "mem": "64m"})
    async for event in client.sessions.watch(after_revision=session.revision, session_id=session.id):
        if event.HasField("reason_changed"):
            break
    # An agent that is late at the moment is counted as such.
    explanation = await eventually(
        session.explain,
        lambda found: {count.cause: count.number for count in found.agents} == {"short of cpu": len(cluster.agents)},
    )
    assert (explanation.queue_position, explanation.queue_length) == (1, 1)
    (hint,) = explanation.would_start_with
    assert hint.startswith("cpu of ")
    # It can never start: no reservation would help.
    assert list(explanation.advice) == []
    await session.terminate()
    smaller = await client.sessions.check(type="interactive", slots={"cpu": hint.split()[2], "mem": "64m"})
    assert smaller.kernels, "what the hint says is true"
    asked = await client.sessions.check(type="interactive", slots={"cpu": "1000", "mem": "64m"})
    (change,) = asked.would_start_with
    assert (change.text, change.slot.slot, change.slot.amount) == (hint, "cpu", hint.split()[2])


async def test_who_waits_for_no_room_is_offered_no_size(client: Client) -> None:
    """A held session, one before its start time, one behind another, and one beyond a quota."""
    owner = (await client.users.caller()).name
    held = await client.sessions.create(type="batch", command=["true"], hold=True)
    # Too large for any agent as well: being smaller would not release it.
    large = await client.sessions.create(type="batch", command=["true"], hold=True, slots={"cpu": "1000"})
    later = await client.sessions.create(type="batch", command=["true"], earliest_start_time=time.time() + 3600)
    behind = await client.sessions.create(type="batch", command=["true"], depends_on=[held.id])
    reasons = {held: "HELD", large: "HELD", later: "START_TIME", behind: "DEPENDENCY"}
    try:
        await client.quotas.set("user", owner, slots={"cpu": "1"})
        running = await client.sessions.create(type="batch", command=["sleep", "1000"])
        await running.wait("RUNNING", timeout=NEVER)
        reasons[await client.sessions.create(type="batch", command=["true"], slots={"cpu": "1"})] = "QUOTA"
        for session, reason in reasons.items():
            await _expect_no_size(session, reason)
    finally:
        await client.quotas.set("user", owner)
        async for session in client.sessions.list():
            await session.terminate(force=True)
            await session.wait_ended(NEVER)


async def _expect_no_size(session: Session, reason: str) -> None:
    found = await eventually(session.explain, lambda answer: answer.reason == reason)
    assert list(found.would_start_with) == [], reason
    assert not found.HasField("estimated_start_time"), reason


async def test_an_explanation_names_other_groups_with_room(client: Client, cluster: Cluster, tmp_path: Path) -> None:
    """A session in a group without agents may be offered the group that has some,
    unless that one does not grant the mounts.
    """
    await client.resource_groups.create("empty", mount_roots=[MountRoot(path=str(tmp_path))])
    try:
        mounts = [(str(tmp_path), "/mnt/shared", False)]
        fits, mounting = [
            await client.sessions.create(type="interactive", resource_group="empty", slots={"cpu": "1"}, mounts=given)
            for given in ((), mounts)
        ]
        await eventually(fits.explain, lambda found: list(found.would_start_with) == ["resource group default"])
        assert list((await client.sessions.explain(mounting.id)).would_start_with) == []
        preview = await client.sessions.check(type="interactive", resource_group="empty", slots={"cpu": "1"})
        assert [change.resource_group for change in preview.would_start_with] == ["default"]
        moved = await client.sessions.check(type="interactive", resource_group="default", slots={"cpu": "1"})
        assert moved.kernels, "what the hint says is true"
    finally:
        async for session in client.sessions.list():
            await session.terminate(force=True)
            await session.wait_ended(NEVER)
        await client.resource_groups.delete("empty")
