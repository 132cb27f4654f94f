"""Rollouts of endpoints over a real database: rolling, canary, and back by themselves."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from tests.integration.manager.endpoints.controlled import Rig, revision
from tests.integration.manager.rig import failure

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_rolling_rollout_replaces_all_and_is_rolled_back(rig: Rig) -> None:
    await rig.create(scaling=epb.ScalingPolicy(min=3, max=3))
    await rig.settle()
    deployed = await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="llm", revision=revision()))
    assert deployed.deployed.number == 2
    again = rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="llm", revision=revision()))
    assert (await failure(again)).reason == "ROLLOUT_RUNNING"
    await rig.look()
    assert await rig.states() == [(1, "READY")] * 3 + [(2, "STARTING")]
    await rig.settle()
    assert await rig.states() == [(2, "READY")] * 3
    assert await rig.ends() == {("REPLACED", "revision 2 takes over"): 3}
    assert (await rig.get()).rollout.state == epb.ROLLOUT_STATE_DONE
    await rig.call("RollBackEndpoint", pb.RollBackEndpointRequest(endpoint="llm"))
    await rig.settle()
    assert await rig.states() == [(1, "READY")] * 3


async def test_a_canary_waits_for_its_promotion_and_moves_shares(rig: Rig) -> None:
    steps = [epb.CanaryStep(percent=25)]
    await rig.create(
        scaling=epb.ScalingPolicy(min=4, max=4),
        rollout=epb.RolloutSpec(canary=epb.CanaryRollout(steps=steps)),
    )
    await rig.settle()
    await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="llm", revision=revision()))
    await rig.settle()
    shown = await rig.get()
    assert {item.revision: item.effective_percent for item in shown.traffic} == {1: 75, 2: 25}
    assert shown.rollout.state == epb.ROLLOUT_STATE_PROGRESSING
    (routed,) = rig.routers.table.values()
    assert {item.number: item.weight for item in routed.revisions} == {1: 75, 2: 25}
    await rig.call("PromoteRollout", pb.PromoteRolloutRequest(endpoint="llm"))
    await rig.settle()
    assert await rig.states() == [(2, "READY")] * 4
    assert {item.revision: item.percent for item in (await rig.get()).traffic} == {2: 100}
    # Back to what has served before: without steps that wait.
    await rig.call("RollBackEndpoint", pb.RollBackEndpointRequest(endpoint="llm"))
    await rig.settle()
    assert await rig.states() == [(1, "READY")] * 4


async def test_a_revision_that_cannot_start_goes_back_by_itself(rig: Rig) -> None:
    await rig.create()
    await rig.settle()
    await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="llm", revision=revision()))
    for _ in range(5):
        async with rig.service.database.transaction() as tx:
            await tx.execute(text("UPDATE endpoint_revision SET retry_time = NULL"))
        await rig.look()
        await rig.move("PENDING", "CANCELLED")
        await rig.look()
    await rig.settle()
    shown = await rig.get()
    assert shown.rollout.state == epb.ROLLOUT_STATE_ROLLED_BACK
    assert shown.rollout.message == "5 replicas of revision 2 in a row ended before they were ready"
    assert await rig.states() == [(1, "READY")]
