"""What others wrote can be sent to the manager, whatever it is."""

from __future__ import annotations

from signal import Signals

import pytest

from retinue.agent.api.convert import attempt_status, desired_attempt, runtime_status
from retinue.agent.attempts import (
    Isolation,
    Mount,
    ObservedAttempt,
    Owner,
    Phase,
    Probe,
    ProbeKind,
    PublishedPort,
    TimeWarning,
)
from retinue.agent.docker.core.image_labels import LabelError, read_labels
from retinue.agent.kernel.core.signals import Delivery, Target, delivery_of
from retinue.agent.probes.core.machine import HealthState
from retinue.agent.probes.prober import Health, RoutedStatus
from retinue.agent.runtime.contract import RuntimeStatus
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.amounts import parse_amount
from retinue.rpc.core.errors import ApiError
from retinue.types.v1 import isolation_pb2, probe_pb2

HOSTILE = ["a\0b", "\x1b[2J", "\udcff", "\u202eabc", "line\nline", "x" * 100_000]


@pytest.mark.parametrize("text", HOSTILE)
def test_words_of_others_are_fit_to_be_sent_and_shown(text: str) -> None:
    attempt = ObservedAttempt("k.1", "s", "k", False, Phase.FAILED, reason=text, message=text)
    for status in (attempt_status("k.1", attempt), attempt_status("k.1", None, text)):
        assert status.SerializeToString()
        assert status.message.isprintable()
        assert len(status.message) <= 4096
    assert attempt_status("k.1", attempt).reason.isprintable()


def test_labels_with_anything_in_their_names_are_errors_in_plain_words() -> None:
    for labels in ({"ai.backend.resource.min.\0x": "1"}, {"ai.backend.resource.min.cpu": "\0"}):
        with pytest.raises(LabelError) as raised:
            read_labels(labels)
        assert str(raised.value).isprintable()
    with pytest.raises(ValueError, match="suffix") as suffixed:
        parse_amount("cpu", "1g")
    assert str(suffixed.value).isprintable()


def attempt(**published: object) -> pb.Attempt:
    values: dict[str, object] = {"port": 8000} | published
    port = pb.PublishedPort(**values)  # type: ignore[arg-type]
    return pb.Attempt(id="k.1", kernel_id="k", number=1, goal=pb.GOAL_RUNNING, hostname="main1", published=port)


def test_a_published_port_without_probes_is_ready_when_it_takes_connections() -> None:
    assert desired_attempt(attempt()).spec.published == PublishedPort(8000, Probe(ProbeKind.TCP))
    for port in (-1, 0, 65_536):
        with pytest.raises(ApiError):
            desired_attempt(attempt(port=port))


@pytest.mark.parametrize(
    ("message", "probe"),
    [
        (
            probe_pb2.Probe(http=probe_pb2.HttpProbe(path="/live", port=81)),
            Probe(ProbeKind.HTTP, path="/live", port=81),
        ),
        (probe_pb2.Probe(http=probe_pb2.HttpProbe(path="/ HTTP/1.1\r\nA: b", port=-1)), Probe(ProbeKind.HTTP)),
        (
            probe_pb2.Probe(grpc=probe_pb2.GrpcProbe(service="a.B"), failures=7),
            Probe(ProbeKind.GRPC, service="a.B", failures=7),
        ),
        (probe_pb2.Probe(exec=probe_pb2.ExecProbe(command=["x"]), successes=-1), Probe(ProbeKind.EXEC, command=("x",))),
        # One that asks nothing, or in a way that a later version knows.
        (probe_pb2.Probe(exec=probe_pb2.ExecProbe()), None),
        (probe_pb2.Probe(), None),
    ],
)
def test_probes_are_read_with_their_defaults(message: probe_pb2.Probe, probe: Probe | None) -> None:
    published = desired_attempt(attempt(startup=message)).spec.published
    assert published is not None
    assert published.startup == probe


def test_times_of_probes_are_bounded() -> None:
    message = probe_pb2.Probe(tcp=probe_pb2.TcpProbe())
    message.period.FromMilliseconds(1)
    message.timeout.FromSeconds(1 << 32)
    published = desired_attempt(attempt(liveness=message)).spec.published
    assert published is not None
    assert published.liveness == Probe(ProbeKind.TCP, period=0.1, timeout=3600.0)


def test_health_and_address_are_reported_and_fit_to_be_shown() -> None:
    running = ObservedAttempt("k.1", "s", "k", False, Phase.RUNNING)
    routed = RoutedStatus(Health(HealthState.UNREADY, 5.0, "a\0b" * 1000), ("192.0.2.1", 30_001))
    status = attempt_status("k.1", running, "", routed)
    assert (status.health.state, status.health.since_time.seconds) == (pb.HEALTH_STATE_UNREADY, 5)
    assert len(status.health.message) == 1024
    assert status.health.message.isprintable()
    assert (status.published.address, status.published.port) == ("192.0.2.1", 30_001)
    bare = attempt_status("k.1", running)
    assert not bare.HasField("health")
    assert not bare.HasField("published")


@pytest.mark.parametrize(
    ("isolation", "image", "expected"),
    [
        # Managers of before say nothing of it.
        (isolation_pb2.ISOLATION_UNSPECIFIED, "", Isolation.PROCESS),
        (isolation_pb2.ISOLATION_UNSPECIFIED, "debian:12", Isolation.CONTAINER),
        (isolation_pb2.ISOLATION_PROCESS, "debian:12", Isolation.PROCESS),
        (isolation_pb2.ISOLATION_CONTAINER, "", Isolation.CONTAINER),
        (isolation_pb2.ISOLATION_VM, "debian:12", Isolation.VM),
        # Those to come say more.
        (77, "debian:12", Isolation.OTHER),
        (-1, "", Isolation.OTHER),
    ],
)
def test_isolation_is_as_said_or_follows_from_the_image(isolation: int, image: str, expected: Isolation) -> None:
    message = attempt()
    message.image = image
    message.isolation = isolation  # type: ignore[assignment]
    assert desired_attempt(message).spec.isolation is expected


def test_status_of_a_runtime_is_fit_to_be_sent_and_shown() -> None:
    for text in HOSTILE:
        message = runtime_status(RuntimeStatus("vm", available=False, message=text))
        assert message.SerializeToString()
        assert message.message.isprintable()


@pytest.mark.parametrize(
    ("values", "stop"),
    [
        ({}, Delivery(Signals.SIGTERM, Target.ALL)),
        ({"stop_signal": "SIGINT"}, Delivery(Signals.SIGINT, Target.ALL)),
        # One that only later versions know.
        ({"stop_signal": "RTMIN+3"}, Delivery(Signals.SIGTERM, Target.ALL)),
        ({"stop_signal": "QUIT", "stops_all": False}, Delivery(Signals.SIGQUIT, Target.COMMAND)),
        # What idles ends by nothing else.
        ({"stop_signal": "USR1", "command": []}, Delivery()),
    ],
)
def test_what_asks_an_attempt_to_end(values: dict[str, object], stop: Delivery) -> None:
    message = attempt()
    message.MergeFrom(pb.Attempt(**({"command": ["serve"], "stops_all": True} | values)))  # type: ignore[arg-type]
    spec = desired_attempt(message).spec
    assert spec.stop == stop == delivery_of(stop.code)


def test_a_warning_is_for_the_command_or_for_what_it_has_started() -> None:
    message = attempt()
    message.time_warning.signal = "USR1"
    message.time_warning.after.FromSeconds(60)
    assert desired_attempt(message).spec.warning == TimeWarning(Delivery(Signals.SIGUSR1), 60.0)
    message.time_warning.started_only = True
    assert desired_attempt(message).spec.warning == TimeWarning(Delivery(Signals.SIGUSR1, Target.STARTED), 60.0)
    message.time_warning.signal = "NONSENSE"
    assert desired_attempt(message).spec.warning is None


@pytest.mark.parametrize(
    ("uid", "gid", "owner"), [(0, 0, None), (1500, 1501, Owner(1500, 1501)), (1, 2**31 - 1, Owner(1, 2**31 - 1))]
)
def test_whom_files_of_a_mount_belong_to(uid: int, gid: int, owner: Owner | None) -> None:
    message = attempt()
    message.mounts.add(root="/srv", path="a", target="/data", writable=True, uid=uid, gid=gid)
    assert desired_attempt(message).spec.mounts == (Mount("/srv", "a", "/data", writable=True, owner=owner),)


@pytest.mark.parametrize(("uid", "gid"), [(0, 5), (5, 0), (-1, 5), (5, -1)])
def test_files_of_a_mount_never_belong_to_root(uid: int, gid: int) -> None:
    message = attempt()
    message.mounts.add(root="/srv", target="/data", uid=uid, gid=gid)
    with pytest.raises(ApiError, match="belong to"):
        desired_attempt(message)
