"""An endpoint whose row cannot be read costs itself only."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from tests.integration.manager.endpoints.controlled import Rig, revision

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_endpoint_that_cannot_be_read_is_listed_beside_the_others(rig: Rig) -> None:
    await rig.create("damaged")
    await rig.create("sound", labels={"a": "b"})
    async with rig.service.database.transaction() as tx:
        await tx.execute(text("UPDATE endpoint SET settings = '{\"scaling\": 7}' WHERE name = 'damaged'"))
    listed = (await rig.call("ListEndpoints", pb.ListEndpointsRequest())).endpoints
    assert [(item.spec.name, item.owner, dict(item.spec.labels)) for item in listed] == [
        ("sound", "ada", {"a": "b"}),
        ("damaged", "ada", {}),
    ]
    # The controller keeps the others.
    await rig.look(2)
    assert await rig.states("sound") == [(1, "STARTING")]


@pytest.mark.parametrize("stored", ["[]", "7", '{"a:1": null}', '{"a:1": ["sha256:1"]}', '{"a:1": {"b": 2}}'])
async def test_images_of_a_revision_that_cannot_be_read_are_looked_up_again(rig: Rig, stored: str) -> None:
    await rig.create("damaged")
    async with rig.service.database.transaction() as tx:
        change = text("UPDATE endpoint_revision SET found_images = CAST(:stored AS jsonb)")
        await tx.execute(change, {"stored": stored})
    listed = await rig.call("ListRevisions", pb.ListRevisionsRequest(endpoint="damaged"))
    assert [dict(item.image_digests) for item in listed.revisions] == [{}]
    await rig.look(2)
    assert await rig.states("damaged") == [(1, "STARTING")]


_DAMAGED = "(SELECT id FROM endpoint WHERE name = 'damaged')"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE endpoint SET lifecycle = 'ODD' WHERE name = 'damaged'",
        "UPDATE endpoint SET target = 2000000000 WHERE name = 'damaged'",
        f"UPDATE rollout SET state = 'ODD' WHERE endpoint_id = {_DAMAGED}",  # noqa: S608  # a constant
        f"UPDATE endpoint_replica SET state = 'ODD' WHERE endpoint_id = {_DAMAGED}",  # noqa: S608  # a constant
    ],
    ids=["lifecycle", "target", "rollout", "replica"],
)
async def test_a_damaged_row_costs_its_endpoint_only(rig: Rig, damage: str) -> None:
    await rig.create("damaged", scaling=epb.ScalingPolicy(min=1, max=3))
    await rig.create("sound")
    await rig.look(2)
    await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="damaged", revision=revision(queue=7)))
    async with rig.service.database.transaction() as tx:
        await tx.execute(text(damage))
    await rig.look(2)
    listed = (await rig.call("ListEndpoints", pb.ListEndpointsRequest())).endpoints
    assert {item.spec.name for item in listed} == {"sound", "damaged"}
    await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="sound", revision=revision(queue=8)))
    await rig.look(2)
    assert (2, "STARTING") in await rig.states("sound")
