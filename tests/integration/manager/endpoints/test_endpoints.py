"""Endpoints over a real database: the service as users see it, and the leader's controller,
with sessions that are moved by hand.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import text

from retinue.manager.domain.endpoints.model import Traffic
from retinue.manager.endpoints.controller import EndpointController
from retinue.manager.v1 import (
    account_service_pb2,
)
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.manager.v1 import session_pb2 as spb
from retinue.manager.v1 import session_service_pb2 as sessions_pb
from retinue.types.v1 import probe_pb2
from tests.integration.manager.endpoints.controlled import TERM, Rig, revision
from tests.integration.manager.rig import bearer, failure

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode


async def test_replicas_are_inference_sessions_and_become_ready(rig: Rig) -> None:
    made = await rig.create(scaling=epb.ScalingPolicy(min=2, max=4))
    assert made.state == epb.ENDPOINT_STATE_CREATING
    assert made.host_label.startswith("llm-")
    assert (made.target, made.spec.routing.hold_limit, made.spec.scaling.burst_percent) == (2, 1000, 200)
    assert dict(made.spec.revision.session.kernel.environment) == {"KEY": "value"}
    await rig.look()
    request = sessions_pb.ListSessionsRequest(view=spb.SESSION_VIEW_FULL)
    sessions = (await rig.sessions.ListSessions(request, metadata=rig.metadata["ada"])).sessions
    assert [(item.spec.type, item.spec.endpoint, item.owner) for item in sessions] == [
        (spb.SESSION_TYPE_INFERENCE, "llm", "ada")
    ] * 2
    assert await rig.states() == [(1, "STARTING")] * 2
    await rig.settle()
    assert await rig.states() == [(1, "READY")] * 2
    shown = await rig.get()
    assert (shown.state, shown.ready_replicas, shown.replicas) == (epb.ENDPOINT_STATE_READY, 2, 2)
    assert [(item.revision, item.percent, item.effective_percent) for item in shown.traffic] == [(1, 100, 100)]


async def test_a_replica_that_ended_is_replaced_at_once_and_one_that_never_was_ready_after_a_pause(rig: Rig) -> None:
    await rig.create()
    await rig.settle()
    (first,) = await rig.replicas()
    await rig.move("RUNNING", "TERMINATED")
    await rig.look(2)
    (second,) = await rig.replicas()
    assert second.session_id != first.session_id
    await rig.move("PENDING", "CANCELLED")
    await rig.look(3)
    assert await rig.replicas() == []
    explained = await rig.call("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint="llm"))
    assert explained.revisions[0].failures == 1
    assert explained.revisions[0].HasField("retry_time")
    assert [item.session_id for item in explained.replicas] == [second.session_id]
    assert [item.type for item in explained.endpoint.conditions] == ["REVISION_FAILING"]


async def test_a_drain_waits_for_the_routers_and_for_the_last_request(rig: Rig) -> None:
    await rig.create(scaling=epb.ScalingPolicy(min=2, max=2))
    await rig.settle()
    await rig.call(
        "UpdateEndpoint",
        pb.UpdateEndpointRequest(endpoint="llm", spec=epb.EndpointSpec(scaling=epb.ScalingPolicy(min=1, max=1))),
    )
    rig.controller = EndpointController(rig.service.database, TERM, lambda _affected: None, rig.routers)
    rig.routers.acknowledges = False
    rig.routers.reported = Traffic(live=1)
    await rig.look(3)
    assert await rig.states() == [(1, "DRAINING"), (1, "READY")]
    draining = next(item for item in await rig.replicas() if item.state == epb.REPLICA_STATE_DRAINING)
    rig.routers.acknowledges = True
    rig.routers.reported = Traffic(live=1, draining={uuid.UUID(draining.session_id): 1})
    await rig.look(3)
    assert await rig.states() == [(1, "DRAINING"), (1, "READY")]
    rig.routers.reported = replace(rig.routers.reported, draining={uuid.UUID(draining.session_id): 0})
    await rig.look(2)
    assert await rig.states() == [(1, "READY"), (1, "STOPPING")] or len(await rig.replicas()) == 1
    assert await rig.ends() == {("SCALED_DOWN", "fewer replicas are wanted"): 1}


@pytest.mark.parametrize(
    ("known", "states"),
    [
        (Traffic(live=1, missing=1), [(1, "DRAINING"), (1, "READY")]),
        (Traffic(silent=1), [(1, "DRAINING"), (1, "READY")]),
        (Traffic(), [(1, "READY")]),
    ],
    ids=["unreported", "silent", "none"],
)
async def test_unreported_requests_are_none_only_without_a_router(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, known: Traffic, states: list[tuple[int, str]]
) -> None:
    await rig.create(scaling=epb.ScalingPolicy(min=2, max=2))
    await rig.settle()
    bounds = epb.EndpointSpec(scaling=epb.ScalingPolicy(min=1, max=1))
    await rig.call("UpdateEndpoint", pb.UpdateEndpointRequest(endpoint="llm", spec=bounds))
    # A new leader.
    rig.controller = EndpointController(rig.service.database, TERM, lambda _affected: None, rig.routers)
    monkeypatch.setattr(rig.routers, "traffic", lambda: replace(known, acknowledged=rig.routers.revision))
    for _ in range(5):
        await rig.look()
        await rig.move("TERMINATING", "TERMINATED")
    assert [item for item in await rig.states() if item[1] != "GONE"] == states


async def test_deleting_drains_ends_and_frees_the_name(rig: Rig) -> None:
    made = await rig.create()
    await rig.settle()
    deleted = await rig.call("DeleteEndpoint", pb.DeleteEndpointRequest(endpoint="llm"))
    assert deleted.endpoint.state == epb.ENDPOINT_STATE_DELETING
    for _ in range(8):
        await rig.look()
        await rig.move("TERMINATING", "TERMINATED")
    assert (await failure(rig.call("GetEndpoint", pb.GetEndpointRequest(endpoint="llm")))).reason == "NOT_FOUND"
    gone = await rig.get(made.id)
    assert gone.state == epb.ENDPOINT_STATE_DELETED
    assert await rig.ends() == {("ENDPOINT_DELETED", "no replica is wanted"): 1}
    assert rig.routers.table[uuid.UUID(made.id)].deleted
    assert (await rig.create()).id != made.id


@pytest.mark.attack("endpoints-of-others")
async def test_who_sees_and_what_is_refused(rig: Rig) -> None:
    request = pb.CreateEndpointRequest(
        spec=epb.EndpointSpec(name="llm", revision=revision()), request_id=str(uuid.uuid4())
    )
    made = (await rig.call("CreateEndpoint", request)).endpoint
    assert (await rig.call("CreateEndpoint", request)).endpoint.id == made.id
    refused = await failure(rig.create())
    assert refused.reason == "NAME_TAKEN"
    for method, message in (
        ("GetEndpoint", pb.GetEndpointRequest(endpoint="llm")),
        ("DeleteEndpoint", pb.DeleteEndpointRequest(endpoint=made.id)),
        ("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint="default/llm")),
        ("GetEndpointHistory", pb.GetEndpointHistoryRequest(endpoint=made.id)),
    ):
        assert (await failure(rig.call(method, message, "bob"))).reason == "NOT_FOUND"
    assert not (await rig.call("ListEndpoints", pb.ListEndpointsRequest(), "bob")).endpoints
    assert [item.id for item in (await rig.call("ListEndpoints", pb.ListEndpointsRequest())).endpoints] == [made.id]
    spec = spb.SessionSpec(type=spb.SESSION_TYPE_INFERENCE, endpoint="llm")
    by_hand = rig.sessions.CreateSession(sessions_pb.CreateSessionRequest(spec=spec), metadata=rig.metadata["ada"])
    assert (await failure(by_hand)).reason == "ENDPOINT_MANAGED"
    shares = [pb.TrafficShare(revision=1, percent=90)]
    sums = await failure(rig.call("SetTraffic", pb.SetTrafficRequest(endpoint="llm", traffic=shares)))
    assert sums.reason == "TRAFFIC_SUM"


async def test_every_wrong_field_is_named(rig: Rig) -> None:
    wrong = epb.EndpointSpec(
        name="No!",
        revision=epb.RevisionSpec(port=0, queue=-1),
        scaling=epb.ScalingPolicy(
            min=5,
            max=2,
            metrics=[epb.ScalingMetric(queue=epb.QueueMetric(), target="many")],
            schedules=[epb.ScalingSchedule(cron="61 * * * *", time_zone="Nowhere/Else", replicas=1)],
        ),
        access=epb.AccessPolicy(source_ranges=["everywhere"]),
        rollout=epb.RolloutSpec(rolling=epb.RollingRollout(max_surge="0", max_unavailable="0")),
    )
    error = await failure(rig.call("CreateEndpoint", pb.CreateEndpointRequest(spec=wrong)))
    assert set(error.fields) == {
        "spec.name",
        "spec.revision.port",
        "spec.revision.queue",
        "spec.scaling.max",
        "spec.scaling.metrics[0].target",
        "spec.scaling.schedules[0].cron",
        "spec.scaling.schedules[0].time_zone",
        "spec.scaling.schedules[0].duration",
        "spec.access.source_ranges[0]",
        "spec.rollout.rolling.max_surge",
    }
    session = epb.RevisionSpec(session=spb.SessionSpec(name="mine", kernel=spb.KernelSpec(slots={"cpu": "x"})), port=1)
    request = pb.CreateEndpointRequest(spec=epb.EndpointSpec(name="llm", revision=session))
    error = await failure(rig.call("CreateEndpoint", request))
    assert error.fields == ["spec.revision.session.name"]
    session.session.ClearField("name")
    request = pb.CreateEndpointRequest(spec=epb.EndpointSpec(name="llm", revision=session))
    error = await failure(rig.call("CreateEndpoint", request))
    assert error.fields == ["spec.revision.session.kernel.slots['cpu']"]


async def test_what_a_router_refuses_is_a_condition_of_its_endpoint_only(rig: Rig) -> None:
    made = await rig.create()
    await rig.create("other")
    rig.routers.refused = {uuid.UUID(made.id): "no such\x00cluster" + "x" * 10_000}
    await rig.look()
    (condition,) = (await rig.get()).conditions
    assert condition.type == "ROUTE_REFUSED"
    assert condition.message.startswith("no such")
    assert len(condition.message) < 2_000
    assert not (await rig.get("other")).conditions
    rig.routers.refused = {}
    await rig.look()
    assert not (await rig.get()).conditions


async def test_what_has_endpoints_is_not_deleted(rig: Rig) -> None:
    root = bearer(await rig.service.user("root", role="ADMIN"))
    made = await rig.create()
    project = account_service_pb2.DeleteProjectRequest(name="default")
    owner = account_service_pb2.DeleteUserRequest(name="ada")
    for call in (rig.accounts.DeleteProject(project, metadata=root), rig.accounts.DeleteUser(owner, metadata=root)):
        assert (await failure(call)).reason == "IN_USE"
    await rig.call("DeleteEndpoint", pb.DeleteEndpointRequest(endpoint=made.id))
    await rig.look()
    await rig.accounts.DeleteUser(owner, metadata=root)
    # Its record stays for the day in which its address answers 410.
    await rig.look()
    assert rig.routers.table[uuid.UUID(made.id)].deleted


async def test_a_manager_that_does_not_lead_says_who_does_and_what_is_stored(rig: Rig) -> None:
    made = await rig.create()
    async with rig.service.database.transaction() as tx:
        await tx.execute(text("UPDATE leadership SET holder = 'm2:7'"))
    await rig.look()
    # It fails as it starts, with some output.
    await rig.move("PENDING", "CANCELLED")
    await rig.look()
    async with rig.service.database.transaction() as tx:
        await tx.execute(
            text("""
                INSERT INTO kernel_log (kernel_id, epoch, start_offset, data)
                SELECT session_id, 1, 0, convert_to(repeat('x', 5000) || E'no weights\n', 'UTF8') FROM endpoint_replica
                WHERE state = 'GONE'
            """)
        )
    explained = await rig.call("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint=made.id))
    assert explained.leader == "m2:7"
    assert not explained.HasField("last_decision")
    assert explained.failure_output.endswith("xno weights\n")
    assert len(explained.failure_output) == 4_096
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await anext(
            aiter(
                rig.stub.StreamEndpointStats(
                    pb.StreamEndpointStatsRequest(endpoint=made.id), metadata=rig.metadata["ada"]
                )
            )
        )
    assert refused.value.code() is Code.UNAVAILABLE
    assert "m2:7" in str(refused.value.details())
    elsewhere = await failure(rig.call("GetEndpointHistory", pb.GetEndpointHistoryRequest(endpoint=made.id)))
    assert elsewhere.code is Code.UNAVAILABLE
    request = pb.GetEndpointHistoryRequest(endpoint=made.id, since_time=Timestamp(nanos=-1))
    wrong = await failure(rig.call("GetEndpointHistory", request))
    assert (wrong.code, wrong.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELD")


async def test_an_endpoint_at_rest_is_read_again_when_anything_about_it_has_changed(rig: Rig) -> None:
    await rig.create(scaling=epb.ScalingPolicy(min=2, max=2))
    await rig.create("other")
    await rig.settle()
    read: list[set[uuid.UUID]] = []
    ids = {name: uuid.UUID((await rig.get(name)).id) for name in ("llm", "other")}

    async def look() -> set[uuid.UUID]:
        """Returns the endpoints that a look has read."""
        before = {key: memory.view for key, memory in rig.controller._memories.items()}  # noqa: SLF001  # what it keeps
        await rig.look()
        after = {key: memory.view for key, memory in rig.controller._memories.items()}  # noqa: SLF001
        read.append({key for key in after if after[key] is not before.get(key)})
        return read[-1]

    async def execute(statement: str) -> None:
        async with rig.service.database.transaction() as tx:
            await tx.execute(text(statement), {"id": ids["llm"]})

    await look()
    assert await look() == set()
    for statement in (
        "UPDATE endpoint SET version = version + 1 WHERE id = :id",
        "UPDATE endpoint_replica SET health = 'READY' WHERE endpoint_id = :id",
        "UPDATE session SET message = 'x' WHERE id IN (SELECT session_id FROM endpoint_replica WHERE endpoint_id = :id)",
        "INSERT INTO scaling_floor (endpoint_id, replicas, end_time) VALUES (:id, 1, now() + interval '1 hour')",
        "UPDATE scaling_floor SET end_time = now() WHERE endpoint_id = :id",
    ):
        await execute(statement)
        assert await look() == {ids["llm"]}, statement
        assert await look() == set(), statement
    await execute("UPDATE endpoint_replica SET health = 'UNREADY' WHERE endpoint_id = :id")
    assert await look() == {ids["llm"]}
    # It is not at rest, and read each time.
    assert await look() == {ids["llm"]}
    rig.routers.refused = {ids["other"]: "no"}
    assert await look() == set(ids.values())


async def test_agents_hear_of_replicas_with_a_liveness_probe_that_answer(rig: Rig) -> None:
    liveness = probe_pb2.Probe(tcp=probe_pb2.TcpProbe())
    spec = epb.EndpointSpec(name="llm", revision=revision(liveness=liveness), scaling=epb.ScalingPolicy(min=2, max=2))
    await rig.call("CreateEndpoint", pb.CreateEndpointRequest(spec=spec))
    heard: list[dict[str, list[str]]] = []
    rig.controller = EndpointController(
        rig.service.database,
        TERM,
        lambda _affected: None,
        rig.routers,
        answered=lambda attempts: heard.append({key: list(found) for key, found in attempts.items()}),
    )
    await rig.settle()
    (routed,) = rig.routers.table.values()
    assert [item.watched for item in routed.revisions] == [True]
    async with rig.service.database.transaction() as tx:
        await tx.execute(text("UPDATE kernel SET epoch = 3, agent_id = 'a1'"))
        await tx.execute(text("UPDATE session SET message = 'placed'"))
    one, two = (uuid.UUID(item.session_id) for item in await rig.replicas())
    for counts in ({one: 5, two: 1}, {one: 5, two: 2}, {one: 5, two: 2}, {one: 0, two: 0}, {one: 1, two: 0}):
        rig.routers.reported = replace(rig.routers.reported, answered=counts)
        await rig.look()
    # What a router had counted before is nothing new, and neither is a count that fell as one went.
    assert heard == [{"a1": [f"{two}.3"]}, {"a1": [f"{one}.3"]}]
