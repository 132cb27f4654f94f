"""An endpoint whose row cannot be read costs itself only."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from grpc import StatusCode as Code
from sqlalchemy import text

from retinue.manager.endpoints.routers.messages import endpoint_message
from retinue.manager.store.endpoints import endpoint_tokens
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.integration.manager.endpoints.controlled import Rig, revision
from tests.integration.manager.rig import failure

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


_NAMED = "(SELECT id FROM endpoint WHERE name = :name)"


def _settings(path: str, value: str) -> str:
    return f"UPDATE endpoint SET settings = jsonb_set(settings, '{{{path}}}', '{value}') WHERE name = :name"  # noqa: S608  # constants


def _revisions(path: str, value: str) -> str:
    change = f"jsonb_set(spec, '{{{path}}}', '{value}')"
    return f"UPDATE endpoint_revision SET spec = {change} WHERE endpoint_id = {_NAMED}"  # noqa: S608  # constants


UNREADABLE = {
    "settings": "UPDATE endpoint SET settings = '7' WHERE name = :name",
    "unknown word": _settings("routing,algorithm", '"ODD"'),
    "window": _settings("scaling,stable", "0"),
    "period": _settings("scaling,up,period", "0"),
    "bounds": _settings("scaling,max", "-3"),
    "long time": _settings("routing,idle_timeout_ms", "1e30"),
    "negative time": _settings("routing,hold_timeout_ms", "-1"),
    "hold limit": _settings("routing,hold_limit", "1099511627776"),
    "metric": _settings("scaling,metrics", '[{"name": "latency:soon", "target": 1000, "kind": "pressure"}]'),
    "strategy": _settings("rollout,progress_timeout", "1e30"),
    "lifecycle": "UPDATE endpoint SET lifecycle = 'ODD' WHERE name = :name",
    "revision": _revisions("replica", "7"),
    "protocol": _revisions("replica,protocol", '"ODD"'),
    "queue": _revisions("replica,queue", "1099511627776"),
    "concurrency": _revisions("replica,max_concurrency", "-1"),
    "port": _revisions("replica,port", "70000"),
    "start timeout": _revisions("replica,start_timeout", "1e300"),
    "priority": _revisions("session,priority", "1099511627776"),
    "rollout": f"UPDATE rollout SET policy = '{{\"progress_timeout\": 1e30}}' WHERE endpoint_id = {_NAMED}",  # noqa: S608  # constants
}


async def test_endpoints_that_cannot_be_read_say_so_and_can_be_deleted(rig: Rig) -> None:
    names = {kind: f"damaged-{number}" for number, kind in enumerate(UNREADABLE)}
    for name in names.values():
        await rig.create(name, scaling=epb.ScalingPolicy(min=1, max=3))
    await rig.create("sound")
    await rig.settle("sound")
    for name in names.values():
        await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint=name, revision=revision(queue=7)))
    await rig.look()
    for kind, name in names.items():
        async with rig.service.database.transaction() as tx:
            assert (await tx.execute(text(f"{UNREADABLE[kind]} RETURNING 1"), {"name": name})).all(), kind
    for kind, name in names.items():
        for method, request in _calls(name):
            refused = await failure(rig.call(method, request))
            assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "STATE_FORBIDS"), (kind, method)
            assert "cannot be read" in refused.text, (kind, method)
    listed = {item.spec.name: item for item in (await rig.call("ListEndpoints", pb.ListEndpointsRequest())).endpoints}
    for kind, name in names.items():
        assert [item.type for item in listed[name].conditions] == ["UNREADABLE"], kind
        assert listed[name].owner == "ada", kind
    assert listed["sound"].state == epb.ENDPOINT_STATE_READY
    # Others are kept, and the routers serve what they did.
    await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="sound", revision=revision(queue=8)))
    await rig.look(2)
    assert (2, "STARTING") in await rig.states("sound")
    assert {item.name for item in rig.routers.table.values()} == {*names.values(), "sound"}
    for item in rig.routers.table.values():
        endpoint_message(item, "domain.test")
    # Nothing of them is needed to end them.
    for kind, name in names.items():
        deleted = (await rig.call("DeleteEndpoint", pb.DeleteEndpointRequest(endpoint=name))).endpoint
        assert deleted.state == epb.ENDPOINT_STATE_DELETING, kind
    for _ in range(6):
        await rig.look()
        await rig.obey()
        await _drained(rig)
    async with rig.service.database.transaction() as tx:
        found = await tx.execute(text("SELECT name, lifecycle FROM endpoint WHERE name <> 'sound'"))
        assert dict(tuple(row) for row in found) == dict.fromkeys(names.values(), "DELETED")
        left = await tx.execute(
            text("""
                SELECT e.name FROM endpoint_replica r JOIN endpoint e ON e.id = r.endpoint_id
                WHERE e.name <> 'sound' AND r.state <> 'GONE'
            """)
        )
        assert left.all() == []


async def _drained(rig: Rig) -> None:
    """Lets the times of drains pass."""
    async with rig.service.database.transaction() as tx:
        await tx.execute(text("UPDATE endpoint_replica SET drain_time = now() WHERE drain_time IS NOT NULL"))


def _calls(name: str) -> list[tuple[str, Any]]:
    return [
        ("GetEndpoint", pb.GetEndpointRequest(endpoint=name)),
        ("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint=name)),
        ("UpdateEndpoint", pb.UpdateEndpointRequest(endpoint=name, spec=epb.EndpointSpec(labels={"a": "b"}))),
        ("DeployRevision", pb.DeployRevisionRequest(endpoint=name, revision=revision())),
        (
            "SetTraffic",
            pb.SetTrafficRequest(endpoint=name, traffic=[pb.TrafficShare(revision=1, percent=100)]),
        ),
        ("PauseRollout", pb.PauseRolloutRequest(endpoint=name)),
        ("SetScalingFloor", pb.SetScalingFloorRequest(endpoint=name)),
    ]


async def test_tokens_of_an_endpoint_that_cannot_be_read_are_revoked(rig: Rig) -> None:
    endpoint_id = uuid.UUID((await rig.create("damaged")).id)
    async with rig.service.database.transaction() as tx:
        lasts = dt.timedelta(days=1)
        made = await endpoint_tokens.create(tx, endpoint_id, label="", creator="ada", ttl=lasts)
        await tx.execute(text(UNREADABLE["settings"]), {"name": "damaged"})
    listed = (await rig.call("ListEndpointTokens", pb.ListEndpointTokensRequest(endpoint="damaged"))).tokens
    assert [item.id for item in listed] == [str(made.id)]
    revoke = pb.RevokeEndpointTokenRequest(endpoint="damaged", token_id=listed[0].id)
    other = await failure(rig.call("RevokeEndpointToken", revoke, "bob"))
    assert other.code is Code.NOT_FOUND
    assert (await rig.call("RevokeEndpointToken", revoke)).token.HasField("revoke_time")


async def test_a_watch_of_an_endpoint_that_cannot_be_read_begins(rig: Rig) -> None:
    await rig.create("damaged")
    async with rig.service.database.transaction() as tx:
        await tx.execute(text(UNREADABLE["settings"]), {"name": "damaged"})
    request = pb.WatchEndpointsRequest(endpoint="damaged", after=JournalPosition(revision=0))
    watch = rig.stub.WatchEndpoints(request, metadata=rig.metadata["ada"])
    async for response in watch:
        if response.events:
            assert response.events[0].created.spec.name == "damaged"
            break
    else:
        raise AssertionError("the watch ended")
    watch.cancel()
    stats = rig.stub.StreamEndpointStats(
        pb.StreamEndpointStatsRequest(endpoint="damaged"), metadata=rig.metadata["ada"]
    )
    refused = await failure(stats.read())
    assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "STATE_FORBIDS")


async def test_a_revision_that_cannot_be_read_gets_no_requests_and_is_listed(rig: Rig) -> None:
    await rig.create("damaged")
    await rig.settle("damaged")
    for queue in (7, 8):
        await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="damaged", revision=revision(queue=queue)))
        await rig.settle("damaged")
    async with rig.service.database.transaction() as tx:
        await tx.execute(text("UPDATE endpoint_revision SET spec = '{}' WHERE number = 1"))
    listed = (await rig.call("ListRevisions", pb.ListRevisionsRequest(endpoint="damaged"))).revisions
    assert [(item.number, item.HasField("spec"), item.author) for item in listed] == [
        (3, True, "ada"),
        (2, True, "ada"),
        (1, False, "ada"),
    ]
    back = pb.RollBackEndpointRequest(endpoint="damaged", to_revision=1)
    shares = [pb.TrafficShare(revision=1, percent=50), pb.TrafficShare(revision=3, percent=50)]
    for method, request in (
        ("GetRevision", pb.GetRevisionRequest(endpoint="damaged", number=1)),
        ("RollBackEndpoint", back),
        ("SetTraffic", pb.SetTrafficRequest(endpoint="damaged", traffic=shares)),
    ):
        assert (await failure(rig.call(method, request))).reason == "STATE_FORBIDS"
    assert (await rig.get("damaged")).state == epb.ENDPOINT_STATE_READY


async def test_an_entry_of_the_journal_that_cannot_be_shown_is_left_out(rig: Rig) -> None:
    await rig.create("damaged")
    decision = """{"decision": {"before": 1, "target": 4294967296, "recommendation": 2, "cause": "the load", "metrics": [], "at": 0,
        "seen": {"metrics": {}, "in_flight": null, "held": 0, "ready": 1, "starting": 0, "floor": 0}}}"""
    async with rig.service.database.transaction() as tx:
        await tx.execute(
            text("""
                WITH counted AS (UPDATE journal_head SET revision = revision + 1 WHERE id = 1 RETURNING revision)
                INSERT INTO journal (revision, create_time, session_id, owner, project, kind, payload)
                SELECT counted.revision, create_time, session_id, owner, project, 'ENDPOINT_SCALED',
                    CAST(:payload AS jsonb)
                FROM journal, counted WHERE kind = 'ENDPOINT_CREATED'
            """),
            {"payload": decision},
        )
    await rig.create("sound")
    watch = rig.stub.WatchEndpoints(
        pb.WatchEndpointsRequest(after=JournalPosition(revision=0)), metadata=rig.metadata["ada"]
    )
    shown: list[epb.EndpointEvent] = []
    async for response in watch:
        shown += response.events
        if any(event.created.spec.name == "sound" for event in shown):
            break
    assert not any(event.HasField("target_changed") for event in shown)
    watch.cancel()
    explained = await rig.call("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint="damaged"))
    assert not explained.changes
