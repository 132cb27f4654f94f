"""Published ports between the manager and its agents: orders, addresses of routers, and what is reported."""

from __future__ import annotations

import uuid

import pytest

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch import convert
from retinue.manager.dispatch.desired_state import published_port
from retinue.manager.dispatch.sent_state import DesiredState, SentState
from retinue.manager.domain.session.attempts import AttemptStatus, NodeReport
from retinue.manager.domain.session.probes import Health, Probe, ProbeKind, PublishedPort, PublishedStatus

KERNEL = uuid.UUID(int=7)


def test_a_published_port_is_sent_with_its_probes() -> None:
    published = published_port(
        PublishedPort(
            8000,
            startup=Probe(ProbeKind.EXEC, command=("test", "-e", "x"), period=1_500),
            readiness=Probe(ProbeKind.HTTP, path="/health", port=81, failures=4),
            liveness=Probe(ProbeKind.GRPC, service="a.B", timeout=2_000),
        )
    )
    assert published.port == 8000
    assert list(published.startup.exec.command) == ["test", "-e", "x"]
    assert published.startup.period.ToMilliseconds() == 1_500
    http = published.readiness.http
    assert (http.path, http.port, http.min_status, http.max_status) == ("/health", 81, 200, 399)
    assert published.readiness.failures == 4
    assert (published.liveness.grpc.service, published.liveness.timeout.ToMilliseconds()) == ("a.B", 2_000)
    assert published_port(PublishedPort(80, readiness=Probe(ProbeKind.TCP))).readiness.WhichOneof("check") == "tcp"
    assert not published_port(PublishedPort(80)).HasField("readiness")


def test_routers_travel_with_the_protected_addresses() -> None:
    state = SentState(DesiredState(), frozenset(), frozenset({"192.0.2.1"}))
    step = state.advance(DesiredState(), (), frozenset(), frozenset({"192.0.2.2"}))
    assert step
    change = convert.change(step).change
    assert list(change.added_router_addresses) == ["192.0.2.2"]
    assert list(change.removed_router_addresses) == ["192.0.2.1"]
    assert not state.advance(DesiredState(), (), frozenset(), frozenset({"192.0.2.2"}))
    assert list(convert.snapshot(DesiredState(), routers=["192.0.2.2"]).snapshot.router_addresses) == ["192.0.2.2"]


@pytest.mark.parametrize(
    ("health", "published", "expected"),
    [
        (None, None, None),
        (
            pb.AttemptHealth(state=pb.HEALTH_STATE_UNREADY, message="why"),
            pb.PublishedAddress(address="192.0.2.1", port=30_001),
            PublishedStatus(Health.UNREADY, "why", "192.0.2.1", 30_001),
        ),
        (None, pb.PublishedAddress(address="192.0.2.1", port=0), PublishedStatus()),
        (pb.AttemptHealth(state=pb.HealthState.ValueType(99)), None, PublishedStatus()),
    ],
)
def test_health_and_address_are_read(
    health: pb.AttemptHealth | None, published: pb.PublishedAddress | None, expected: PublishedStatus | None
) -> None:
    status = pb.AttemptStatus(attempt_id=f"{KERNEL}.1", health=health, published=published)
    assert _read(status).published == expected


def _read(status: pb.AttemptStatus) -> AttemptStatus:
    report = convert.parse("a", pb.SyncResponse(report=pb.Report(sequence=1, attempts=[status])))
    assert isinstance(report, NodeReport)
    return report.attempts[0]
