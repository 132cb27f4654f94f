"""Where rollbacks go, over a real database: to revisions that have served, never forward."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from retinue.manager.endpoints.controller import EndpointController
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.manager.v1 import session_pb2 as spb
from retinue.manager.v1 import session_service_pb2 as sessions_pb
from tests.integration.manager.endpoints.controlled import TERM, Rig, revision
from tests.integration.manager.rig import failure

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def deploy(rig: Rig) -> int:
    answer = await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="llm", revision=revision()))
    return int(answer.deployed.number)


async def roll_back(rig: Rig, to: int = 0) -> tuple[int, int]:
    """Returns where the rollout comes from, and where it goes."""
    request = pb.RollBackEndpointRequest(endpoint="llm", to_revision=to)
    rollout = (await rig.call("RollBackEndpoint", request)).endpoint.rollout
    return rollout.from_revision, rollout.to_revision


async def refused(rig: Rig, to: int = 0) -> str:
    return (await failure(roll_back(rig, to))).reason


async def fail_to_start(rig: Rig) -> None:
    """Lets every start fail until the rollout has gone back."""
    for _ in range(5):
        async with rig.service.database.transaction() as tx:
            await tx.execute(text("UPDATE endpoint_revision SET retry_time = NULL"))
        await rig.look()
        await rig.move("PENDING", "CANCELLED")
        await rig.look()
    await rig.settle()


async def test_rollbacks_go_further_back_each_time_and_forward_only_to_what_is_named(rig: Rig) -> None:
    await rig.create()
    await rig.settle()
    assert await refused(rig) == "STATE_FORBIDS"
    for _ in range(2):
        await deploy(rig)
        await rig.settle()
    assert await roll_back(rig) == (3, 2)
    # While it goes back nothing turns it round but the name of where it came from.
    assert await refused(rig) == "STATE_FORBIDS"
    assert await refused(rig, 1) == "ROLLOUT_RUNNING"
    await rig.settle()
    assert await rig.states() == [(2, "READY")]
    assert await roll_back(rig) == (2, 1)
    await rig.settle()
    assert await refused(rig) == "STATE_FORBIDS"
    assert await refused(rig, 9) == "INVALID_FIELD"
    assert await roll_back(rig, 3) == (1, 3)
    await rig.settle()
    assert await rig.states() == [(3, "READY")]
    # Back to where a rollback came from, by its name.
    await roll_back(rig)
    await roll_back(rig, 3)
    await rig.settle()
    assert await rig.states() == [(3, "READY")]


async def test_rollbacks_pass_over_what_never_served(rig: Rig) -> None:
    await rig.create()
    await rig.settle()
    await deploy(rig)
    await fail_to_start(rig)
    shown = await rig.get()
    assert (shown.rollout.state, await rig.states()) == (epb.ROLLOUT_STATE_ROLLED_BACK, [(1, "READY")])
    # It went back by itself: there is nothing older, and 2 is no way back.
    assert await refused(rig) == "STATE_FORBIDS"
    await deploy(rig)
    await rig.settle()
    revisions = (await rig.call("ListRevisions", pb.ListRevisionsRequest(endpoint="llm"))).revisions
    assert {item.number: item.HasField("serve_time") for item in revisions} == {3: True, 2: False, 1: True}
    assert await roll_back(rig) == (3, 1)
    await rig.settle()
    # What is named is tried again, however its starts failed before.
    await roll_back(rig, 2)
    await rig.settle()
    assert await rig.states() == [(2, "READY")]


async def test_a_first_revision_that_was_never_ready_is_no_way_back(rig: Rig) -> None:
    await rig.create()
    await deploy(rig)
    await rig.look()
    async with rig.service.database.transaction() as tx:
        await tx.execute(
            text(
                "UPDATE session SET state = 'RUNNING' WHERE id IN (SELECT session_id FROM endpoint_replica WHERE revision = 2)"
            )
        )
        await tx.execute(text("UPDATE endpoint_replica SET address = '192.0.2.9', port = 31000 WHERE revision = 2"))
    await rig.settle(running=False)
    assert await rig.states() == [(2, "READY")]
    assert await refused(rig) == "STATE_FORBIDS"


async def test_replicas_are_spread_unless_they_are_to_be_packed(rig: Rig) -> None:
    await rig.create()
    packed = revision()
    packed.session.replica_placement = spb.REPLICA_PLACEMENT_PACK
    made = await rig.call(
        "CreateEndpoint", pb.CreateEndpointRequest(spec=epb.EndpointSpec(name="tight", revision=packed))
    )
    asked = made.endpoint.spec.revision.session
    assert (asked.replica_placement, asked.endpoint) == (spb.REPLICA_PLACEMENT_PACK, "")
    rig.controller = EndpointController(rig.service.database, TERM, lambda _affected: None, rig.routers)
    await rig.look()
    request = sessions_pb.ListSessionsRequest(view=spb.SESSION_VIEW_FULL)
    sessions = (await rig.sessions.ListSessions(request, metadata=rig.metadata["ada"])).sessions
    assert {item.spec.endpoint: item.spec.replica_placement for item in sessions} == {
        "llm": spb.REPLICA_PLACEMENT_SPREAD,
        "tight": spb.REPLICA_PLACEMENT_PACK,
    }
