"""Requests that no sound client sends: each is refused by name or works whole, and never fails inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.types.v1 import cors_pb2, probe_pb2
from tests.integration.manager.endpoints.controlled import Rig, revision
from tests.integration.router.certificates import authority
from tests.support.fuzz import Fuzz

if TYPE_CHECKING:
    from google.protobuf.message import Message

pytestmark = pytest.mark.asyncio(loop_scope="session")

REQUESTS = 240
REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def sound() -> list[tuple[str, Message]]:
    """A request to each method, with all that a policy can hold."""
    probe = probe_pb2.Probe(exec=probe_pb2.ExecProbe(command=["true"]), failures=2)
    spec = epb.EndpointSpec(
        name="odd",
        revision=revision(readiness=probe, liveness=probe, metrics_path="/metrics", max_concurrency=4),
        scaling=epb.ScalingPolicy(
            min=0,
            max=3,
            metrics=[
                epb.ScalingMetric(latency=epb.LatencyMetric(quantile=0.5), target="1.5"),
                epb.ScalingMetric(custom=epb.CustomMetric(name="depth"), target="2"),
            ],
            schedules=[
                epb.ScalingSchedule(
                    cron="*/5 1-3 * * 1", time_zone="Europe/Paris", duration=Duration(seconds=60), replicas=1
                )
            ],
            up=epb.ScalingRate(percent=10, step=1, period=Duration(seconds=5)),
        ),
        routing=epb.RoutingPolicy(
            algorithm=epb.ROUTING_ALGORITHM_PICKER,
            picker=epb.Picker(address="192.0.2.1:1", ca=authority()),
            affinity=epb.Affinity(cookie="a"),
            cors=cors_pb2.Cors(origins=["https://page.test"], headers=["x-a"]),
            hosts=["a.test"],
        ),
        access=epb.AccessPolicy(source_ranges=["192.0.2.0/24"], per_token=epb.RequestRate(requests=1)),
        rollout=epb.RolloutSpec(
            canary=epb.CanaryRollout(steps=[epb.CanaryStep(percent=10, hold=Duration(seconds=1))]),
            abort_on=epb.AbortOn(error_percent=5),
        ),
        labels={"a": "b"},
    )
    rolling = epb.RolloutSpec(rolling=epb.RollingRollout(max_surge="25%", max_unavailable="1"))
    update = pb.UpdateEndpointRequest(endpoint="odd", spec=spec)
    update.update_mask.paths.extend(["scaling.max", "access"])
    return [
        ("CreateEndpoint", pb.CreateEndpointRequest(spec=spec)),
        ("UpdateEndpoint", update),
        ("DeployRevision", pb.DeployRevisionRequest(endpoint="odd", revision=spec.revision, rollout=rolling)),
        ("PauseRollout", pb.PauseRolloutRequest(endpoint="odd", etag='"v1"')),
        ("SetTraffic", pb.SetTrafficRequest(endpoint="odd", traffic=[pb.TrafficShare(revision=1, percent=100)])),
        ("SetScalingFloor", pb.SetScalingFloorRequest(endpoint="odd", replicas=1, duration=Duration(seconds=1))),
        ("GetRevision", pb.GetRevisionRequest(endpoint="odd", number=1)),
        ("ListRevisions", pb.ListRevisionsRequest(endpoint="odd", page_size=1)),
        ("ListEndpoints", pb.ListEndpointsRequest(project="default")),
        ("GetEndpoint", pb.GetEndpointRequest(endpoint="odd")),
        ("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint="odd")),
        ("DeleteEndpoint", pb.DeleteEndpointRequest(endpoint="odd", etag='"v1"')),
        ("CreateEndpointToken", pb.CreateEndpointTokenRequest(endpoint="odd", label="a")),
        ("ListEndpointTokens", pb.ListEndpointTokensRequest(endpoint="odd")),
        ("RevokeEndpointToken", pb.RevokeEndpointTokenRequest(endpoint="odd", token_id="x")),
    ]


@pytest.mark.attack("odd-scaling")
async def test_no_request_fails_inside_and_none_keeps_the_controller_from_looking(rig: Rig) -> None:
    fuzz, outcomes = Fuzz(7), dict[str, int]()
    await rig.call("CreateEndpoint", sound()[0][1])
    await rig.look(2)
    for number in range(REQUESTS):
        method, message = sound()[number % 15]
        request: Any = fuzz.corrupt(message) if number % 4 else fuzz.message(type(message))
        try:
            await rig.call(method, request)
            outcome = "OK"
        except grpc.aio.AioRpcError as error:
            if error.code() not in REFUSED:
                raise AssertionError(f"{method} {request}: {error.details()}") from error
            outcome = error.code().name
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if number % 15 == 14:
            await rig.look()
    assert outcomes["OK"] > 10
    assert outcomes["INVALID_ARGUMENT"] > 10
    # Whatever was taken can be read, explained and ended.
    for item in (await rig.call("ListEndpoints", pb.ListEndpointsRequest())).endpoints:
        await rig.call("ExplainEndpoint", pb.ExplainEndpointRequest(endpoint=item.id))
        await rig.call("DeleteEndpoint", pb.DeleteEndpointRequest(endpoint=item.id))
    await rig.look(2)


@pytest.mark.attack("odd-scaling")
@pytest.mark.parametrize(
    "target", ["NaN", "sNaN", "Infinity", "-1", "1e999999", "1e-999999", "0", "1.0001", "1" * 100_000, ""]
)
async def test_odd_numbers_are_refused_by_name(rig: Rig, target: str) -> None:
    metric = epb.ScalingMetric(queue=epb.QueueMetric(), target=target)
    spec = epb.EndpointSpec(name="odd", revision=revision(), scaling=epb.ScalingPolicy(metrics=[metric]))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await rig.call("CreateEndpoint", pb.CreateEndpointRequest(spec=spec))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value.details()
    assert "spec.scaling.metrics[0].target" in str(refused.value.details())


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (
            {"revision": {"liveness": probe_pb2.Probe(exec=probe_pb2.ExecProbe(command=["a\0b"]))}},
            "spec.revision.liveness.exec.command",
        ),
        (
            {"revision": {"startup": probe_pb2.Probe(exec=probe_pb2.ExecProbe(command=["a" * 10_000]))}},
            "spec.revision.startup.exec.command",
        ),
        (
            {
                "routing": epb.RoutingPolicy(
                    algorithm=epb.ROUTING_ALGORITHM_PICKER, picker=epb.Picker(address="192.0.2.1:1", ca="a\0b")
                )
            },
            "spec.routing.picker.ca",
        ),
        (
            {"routing": epb.RoutingPolicy(cors=cors_pb2.Cors(origins=["https://page.test"] * 65))},
            "spec.routing.cors.origins",
        ),
    ],
)
async def test_what_cannot_be_stored_or_sent_is_refused_by_name(rig: Rig, spec: dict[str, Any], field: str) -> None:
    fields = {**spec, "revision": revision(**spec.get("revision", {}))}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await rig.call("CreateEndpoint", pb.CreateEndpointRequest(spec=epb.EndpointSpec(name="odd", **fields)))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value.details()
    assert field in str(refused.value.details())
