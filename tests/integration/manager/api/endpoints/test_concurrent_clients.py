"""Several clients that change one endpoint at once, beside the leader's controller: nothing is half done afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from sqlalchemy import text

from retinue.manager.endpoints.controller import EndpointController
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from tests.integration.manager.endpoints.controlled import TERM, Rig, revision
from tests.integration.manager.rig import taken_apart
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What one of several that ask at once may be answered.
EXPECTED = {"ROLLOUT_RUNNING", "STATE_FORBIDS"}
ROUNDS = 6


@contextlib.asynccontextmanager
async def kept(rig: Rig) -> AsyncIterator[None]:
    """Lets the controller look again and again, and sessions run and end."""
    stopping = asyncio.Event()

    async def keep() -> None:
        while not stopping.is_set():
            await rig.look()
            await rig.obey()

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        stopping.set()
        await task


async def attempt(rig: Rig, method: str, request: Any, expected: set[str]) -> bool:
    """Returns whether a call passed; one that did not has to have said one of these."""
    try:
        await rig.call(method, request)
    except grpc.aio.AioRpcError as error:
        reason = taken_apart(error).reason
    else:
        return True
    assert reason in expected
    return False


def scale(most: int) -> pb.UpdateEndpointRequest:
    spec = epb.EndpointSpec(scaling=epb.ScalingPolicy(min=most, max=most))
    return pb.UpdateEndpointRequest(
        endpoint="llm", spec=spec, update_mask=FieldMask(paths=["scaling.min", "scaling.max"])
    )


DEPLOY = pb.DeployRevisionRequest(endpoint="llm", revision=revision())
ROLL_BACK = pb.RollBackEndpointRequest(endpoint="llm")


async def test_deployments_rollbacks_and_bounds_at_once_leave_one_revision_whole(rig: Rig) -> None:
    await rig.create(scaling=epb.ScalingPolicy(min=2, max=2, hold_down=Duration()))
    await rig.settle()
    async with kept(rig):
        for number in range(ROUNDS):
            passed = await asyncio.gather(
                attempt(rig, "DeployRevision", DEPLOY, EXPECTED),
                attempt(rig, "DeployRevision", DEPLOY, EXPECTED),
                attempt(rig, "RollBackEndpoint", ROLL_BACK, EXPECTED),
                attempt(rig, "UpdateEndpoint", scale(1 + number % 3), EXPECTED),
            )
            # Bounds change at any time.
            assert passed[3]
    # One that has not decided in the last 2 s.
    rig.controller = EndpointController(rig.service.database, TERM, lambda _affected: None, rig.routers)
    await rig.settle()
    shown = await rig.get()
    assert shown.rollout.state in (epb.ROLLOUT_STATE_DONE, epb.ROLLOUT_STATE_ROLLED_BACK)
    ((number, percent),) = [(item.revision, item.percent) for item in shown.traffic if item.percent]
    assert percent == 100
    bound = 1 + (ROUNDS - 1) % 3
    assert (shown.target, await rig.states()) == (bound, [(number, "READY")] * bound)
    async with rig.service.database.transaction() as tx:
        alive = await tx.execute(text("SELECT count(*) FROM session WHERE state = 'RUNNING'"))
        assert alive.scalar_one() == bound


async def test_a_deployment_beside_a_deletion_leaves_nothing(rig: Rig) -> None:
    async with kept(rig):
        for _ in range(ROUNDS):
            made = await rig.create(scaling=epb.ScalingPolicy(min=2, max=2))
            delete = pb.DeleteEndpointRequest(endpoint=made.id)
            deploy = pb.DeployRevisionRequest(endpoint=made.id, revision=revision())
            refusals = {"NOT_FOUND", *EXPECTED}
            calls = [attempt(rig, "DeleteEndpoint", delete, set())]
            calls += [attempt(rig, "DeployRevision", deploy, refusals) for _ in range(2)]
            assert (await asyncio.gather(*calls))[0]
            deleted = functools.partial(rig.get, made.id)
            await eventually(deleted, lambda found: found.state == epb.ENDPOINT_STATE_DELETED)
    async with rig.service.database.transaction() as tx:
        alive = await tx.execute(text("SELECT count(*) FROM session WHERE state NOT IN ('TERMINATED', 'CANCELLED')"))
        assert alive.scalar_one() == 0
