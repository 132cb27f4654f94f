"""Endpoints scale over a real database: by their bounds, by load, by measurements, and to zero."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from sqlalchemy import text

from retinue.manager.domain.endpoints.history import Rates
from retinue.manager.domain.endpoints.model import EndpointTraffic, RevisionTraffic, Traffic
from retinue.manager.domain.session.attempts import AttemptUsage, UsageWatch
from retinue.manager.endpoints.controller import EndpointController
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.integration.manager.endpoints.controlled import TERM, Rig, revision
from tests.integration.manager.rig import failure

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_bounds_and_floors_hold_at_once_and_are_in_the_journal(rig: Rig) -> None:
    await rig.create(scaling=epb.ScalingPolicy(min=1, max=5))
    await rig.settle()
    before = await rig.call("GetEndpoint", pb.GetEndpointRequest(endpoint="llm"))
    update = pb.UpdateEndpointRequest(
        endpoint="llm",
        spec=epb.EndpointSpec(scaling=epb.ScalingPolicy(min=2, burst_percent=300)),
        update_mask=FieldMask(paths=["scaling.min"]),
        etag=before.endpoint.etag,
    )
    changed = (await rig.call("UpdateEndpoint", update)).endpoint
    assert (changed.spec.scaling.min, changed.spec.scaling.max, changed.spec.scaling.burst_percent) == (2, 5, 200)
    stale = await failure(rig.call("UpdateEndpoint", update))
    assert stale.reason == "ETAG_MISMATCH"
    rig.controller = EndpointController(rig.service.database, TERM, lambda _affected: None, rig.routers)
    await rig.settle()
    assert len(await rig.replicas()) == 2
    floor = pb.SetScalingFloorRequest(endpoint="llm", replicas=4, duration=Duration(seconds=600))
    assert (await rig.call("SetScalingFloor", floor)).endpoint.scaling_floor.replicas == 4
    rig.controller = EndpointController(rig.service.database, TERM, lambda _affected: None, rig.routers)
    await rig.settle()
    assert len(await rig.replicas()) == 4
    explained = await rig.call("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint="llm"))
    assert [(item.from_target, item.to_target, item.floor) for item in explained.changes] == [(2, 4, 4), (1, 2, 0)]
    watch = rig.stub.WatchEndpoints(
        pb.WatchEndpointsRequest(endpoint="llm", after=JournalPosition(revision=before.position.revision)),
        metadata=rig.metadata["ada"],
    )
    kinds: list[str] = []
    async for response in watch:
        kinds += [str(item.WhichOneof("change")) for item in response.events]
        if kinds.count("target_changed") == 2:
            break
    watch.cancel()
    newest = (await rig.call("GetEndpoint", pb.GetEndpointRequest(endpoint="llm"))).position.revision
    elsewhere = rig.stub.WatchEndpoints(
        pb.WatchEndpointsRequest(project="elsewhere", after=JournalPosition(revision=before.position.revision)),
        metadata=rig.metadata["ada"],
    )
    async for response in elsewhere:
        assert not response.events
        if response.position.revision >= newest:
            break
    else:
        raise AssertionError("the watch ended")
    elsewhere.cancel()
    assert [kind for kind in kinds if kind != "replica_moved"] == [
        "updated",
        "target_changed",
        "floor_set",
        "target_changed",
    ]


async def test_an_endpoint_sleeps_behind_the_gate_and_a_held_request_wakes_it(rig: Rig) -> None:
    made = await rig.create(scaling=epb.ScalingPolicy(min=0, max=2, idle_after=Duration(seconds=10)))
    await rig.settle()
    async with rig.service.database.transaction() as tx:
        await tx.execute(text("UPDATE endpoint SET target = 0"))
    rig.routers.acknowledges = False
    rig.routers.reported = Traffic(live=1)
    await rig.look(2)
    # New requests are held first; the replica serves until every router holds them.
    (routed,) = rig.routers.table.values()
    assert routed.gate
    assert await rig.states() == [(1, "READY")]
    rig.routers.acknowledges = True
    (replica,) = await rig.replicas()
    rig.routers.reported = Traffic(live=1, draining={uuid.UUID(replica.session_id): 1})
    await rig.look(2)
    assert await rig.states() == [(1, "DRAINING")]
    held = {uuid.UUID(made.id): EndpointTraffic(held=1)}
    rig.routers.reported = replace(rig.routers.reported, endpoints=held)
    await rig.look(2)
    assert (await rig.get()).target == 1
    assert await rig.states() == [(1, "READY")]
    (routed,) = rig.routers.table.values()
    assert not routed.gate


async def test_load_that_routers_report_makes_replicas(rig: Rig) -> None:
    made = await rig.create(scaling=epb.ScalingPolicy(min=1, max=9))
    await rig.settle()
    busy = EndpointTraffic(revisions={1: RevisionTraffic(in_flight=40, pending=8)})
    rig.routers.reported = replace(rig.routers.reported, endpoints={uuid.UUID(made.id): busy})
    rig.controller = EndpointController(rig.service.database, TERM, lambda _affected: None, rig.routers)
    await rig.look(2)
    explained = await rig.call("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint="llm"))
    assert explained.endpoint.target == 5
    (metric,) = explained.changes[0].metrics
    assert (metric.name, metric.target, metric.value, metric.recommendation) == ("concurrency", "8", "48", 6)


async def test_what_is_measured_is_sampled_once_a_minute(rig: Rig) -> None:
    made = await rig.create(scaling=epb.ScalingPolicy(min=1, max=9))
    await rig.settle()
    endpoint_id, now = uuid.UUID(made.id), 1_000.0

    def report(requests: int, errors: int, missing: int = 0) -> None:
        counts = RevisionTraffic(3, 2, requests, errors, ((10, requests), (100, requests)))
        traffic = {endpoint_id: EndpointTraffic(1, {1: counts})}
        rig.routers.reported = replace(rig.routers.reported, endpoints=traffic, missing=missing)

    rig.controller = EndpointController(
        rig.service.database, TERM, lambda _affected: None, rig.routers, clock=lambda: now
    )
    report(100, 10)
    await rig.look(3)
    report(160, 40)
    now += 59
    await rig.look()
    assert len(rig.controller.history(endpoint_id, 0)) == 1
    now += 1
    await rig.look(2)
    report(200, 40, missing=1)
    now += 60
    await rig.look()
    first, second, third = rig.controller.history(endpoint_id, 0)
    for found in (first, second, third):
        assert (found.target, found.ready, found.held, found.recommendation) == (1, 1, 1, 1)
        assert found.metrics == {"concurrency": 6_000}
    assert (first.in_flight, second.in_flight, third.in_flight) == (5, 5, None)
    assert (first.rates, second.rates, third.rates) == (Rates(), Rates(1_000, 500, 10, 10), Rates())
    assert rig.controller.history(endpoint_id, third.time + 1) == []
    assert rig.controller.history(uuid.uuid4(), 0) == []


METRICS = epb.ScalingPolicy(
    min=1,
    max=9,
    hold_down=Duration(),
    metrics=[
        epb.ScalingMetric(utilization=epb.UtilizationMetric(slot="cpu"), target="50"),
        epb.ScalingMetric(custom=epb.CustomMetric(name="depth"), target="0.001"),
    ],
)


async def test_what_replicas_use_and_show_makes_replicas_and_what_is_unknown_takes_none(rig: Rig) -> None:
    without = pb.CreateEndpointRequest(spec=epb.EndpointSpec(name="llm", revision=revision(), scaling=METRICS))
    assert (await failure(rig.call("CreateEndpoint", without))).fields == ["spec.scaling.metrics[1].custom"]
    made = (
        await rig.call(
            "CreateEndpoint",
            pb.CreateEndpointRequest(
                spec=epb.EndpointSpec(name="llm", revision=revision(metrics_path="/metrics"), scaling=METRICS)
            ),
        )
    ).endpoint
    assert list(made.spec.scaling.metrics) == list(METRICS.metrics)
    bare = pb.DeployRevisionRequest(endpoint="llm", revision=revision())
    assert (await failure(rig.call("DeployRevision", bare))).fields == ["scaling.metrics[1].custom"]
    watched: dict[str, UsageWatch] = {}
    now = [1_000.0]
    rig.controller = EndpointController(
        rig.service.database,
        TERM,
        lambda _affected: None,
        rig.routers,
        watch_usage=watched.update,
        clock=lambda: now[0],
    )
    await rig.settle()
    (replica,) = await rig.replicas()
    async with rig.service.database.transaction() as tx:
        await tx.execute(text("UPDATE kernel SET state = 'RUNNING', epoch = 1, slots = '{\"cpu\": 1000}'"))
        await tx.execute(
            text("""
                INSERT INTO attempt (kernel_id, epoch, session_id, agent_id, goal, observed, term, log_pending)
                SELECT id, 1, session_id, 'a1', 'RUNNING', 'RUNNING', :term, FALSE FROM kernel
            """),
            {"term": TERM},
        )
    await rig.look()
    name = f"{replica.session_id}.1"
    assert {key: dict(watch.metrics) for key, watch in watched.items()} == {"a1": {name: {"depth"}}}
    # Nothing is known of a replica that runs: it stays, though nothing is known to be asked for.
    now[0] += 2
    await rig.look()
    assert (await rig.get()).target == 1
    for moment in (0.0, 1.0):
        rig.controller.used("a1", [AttemptUsage(name, moment, moment, 0, None, {"depth": 1e300})])
    now[0] += 2
    await rig.look()
    explained = await rig.call("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint="llm"))
    assert explained.endpoint.target == 5
    by_name = {metric.name: metric for metric in explained.changes[0].metrics}
    assert (by_name["utilization:cpu"].value, by_name["utilization:cpu"].recommendation) == ("100", 2)
    # Whatever a replica shows, the decision can be stored and sent.
    assert by_name["custom:depth"].recommendation == 2**31 - 1
