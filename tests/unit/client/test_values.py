"""Small pure things: requests from options, enum words, waits between tries."""

from __future__ import annotations

import grpc
import pytest

from retinue.client import enum_names
from retinue.client.aio import ResourceExhausted, Unavailable, UsageError, session_spec
from retinue.client.transport.backoff import Backoff, RetryBudget
from retinue.manager.v1 import session_pb2 as pb
from retinue.types.v1 import isolation_pb2


def test_isolations_of_a_request_from_options() -> None:
    spec = session_spec(type="interactive", image="i:1", isolation="vm", cluster_size=2, sub_isolation="process")
    assert spec.kernel.isolation == isolation_pb2.ISOLATION_VM
    assert [(role.role, role.kernel.isolation) for role in spec.roles] == [("sub", isolation_pb2.ISOLATION_PROCESS)]
    assert not session_spec(type="interactive").kernel.isolation
    with pytest.raises(UsageError, match="process, container, vm"):
        session_spec(type="interactive", isolation="enclave")  # type: ignore[arg-type]


def test_a_request_from_options() -> None:
    spec = session_spec(
        type="batch",
        name="count",
        project="p",
        resource_group="g",
        cluster_size=3,
        cluster_mode="multi-node",
        priority=0,
        command=["python3", "-c", "pass"],
        environment={"A": "1"},
        slots={"cpu": "2"},
        sub_command=["sleep", "9"],
        main_slots={"mem": "1g"},
        labels={"team": "x"},
        description="why",
        termination_grace=1.5,
    )
    assert (spec.type, spec.cluster_mode, spec.cluster_size) == (pb.SESSION_TYPE_BATCH, pb.CLUSTER_MODE_MULTI_NODE, 3)
    assert (spec.name, spec.project, spec.resource_group, spec.description) == ("count", "p", "g", "why")
    assert spec.HasField("priority")
    assert spec.priority == 0
    assert (spec.termination_grace.seconds, spec.termination_grace.nanos) == (1, 500_000_000)
    assert list(spec.kernel.command) == ["python3", "-c", "pass"]
    assert (dict(spec.kernel.environment), dict(spec.kernel.slots), dict(spec.labels)) == (
        {"A": "1"},
        {"cpu": "2"},
        {"team": "x"},
    )
    assert [(role.role, dict(role.kernel.slots), list(role.kernel.command)) for role in spec.roles] == [
        ("main", {"mem": "1g"}, []),
        ("sub", {}, ["sleep", "9"]),
    ]


def test_what_is_not_given_is_left_to_the_server() -> None:
    spec = session_spec(type="interactive")
    expected = pb.SessionSpec(type=pb.SESSION_TYPE_INTERACTIVE, cluster_size=1, kernel=pb.KernelSpec())
    assert spec == expected
    assert not spec.HasField("priority")
    assert not spec.HasField("termination_grace")


def test_requests_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="interactive, batch"):
        session_spec(type="banana")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        session_spec(command=["true"])
    with pytest.raises(UsageError, match="list of arguments"):
        session_spec(type="batch", command="echo hello")
    with pytest.raises(UsageError, match="unknown option 'comand': did you mean command"):
        session_spec(type="batch", comand=["true"])  # type: ignore[call-arg]


def test_words_are_the_inverse_of_numbers() -> None:
    for enum in (
        enum_names.SESSION_TYPE,
        enum_names.CLUSTER_MODE,
        enum_names.SESSION_STATE,
        enum_names.KERNEL_STATE,
        enum_names.AGENT_STATE,
    ):
        for value in enum.values:
            if value.number:
                assert enum_names.number(enum, enum_names.name_of(enum, value.number)) == value.number
    assert enum_names.number(enum_names.CLUSTER_MODE, "single-node") == pb.CLUSTER_MODE_SINGLE_NODE
    assert enum_names.number(enum_names.SESSION_STATE, "SESSION_STATE_RUNNING") == pb.SESSION_STATE_RUNNING
    assert enum_names.name_of(enum_names.SESSION_STATE, 99) == "UNKNOWN_99"
    for wrong in ("", "unspecified", "99"):
        with pytest.raises(UsageError):
            enum_names.number(enum_names.SESSION_STATE, wrong)


UNAVAILABLE = Unavailable("away", code=grpc.StatusCode.UNAVAILABLE)


class Clock:
    """Seconds that pass only in sleep, which it records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.waits: list[float] = []
        monkeypatch.setattr("tenacity.time.monotonic", lambda: self.now)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


async def test_waits_double_up_to_the_longest_with_full_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ceilings = [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    for _ in range(50):
        clock.waits.clear()
        backoff = Backoff(RetryBudget(first=1.0, longest=8.0, total=100.0), clock.sleep)
        for _ in ceilings:
            await backoff.failed(UNAVAILABLE)
        assert all(0 <= wait <= ceiling for wait, ceiling in zip(clock.waits, ceilings, strict=True))
    clock.waits.clear()
    backoff = Backoff(RetryBudget(first=1.0, longest=8.0, total=10_000.0), clock.sleep)
    for _ in range(500):
        await backoff.failed(UNAVAILABLE)
    assert max(clock.waits) > 7


async def test_patience_counts_from_the_first_failure_since_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    backoff = Backoff(RetryBudget(first=0.0, total=10.0), clock.sleep)
    # The work went well for long before.
    clock.now += 1000.0
    await backoff.failed(UNAVAILABLE)
    clock.now += 9.9
    await backoff.failed(UNAVAILABLE)
    clock.now += 0.1
    with pytest.raises(Unavailable):
        await backoff.failed(UNAVAILABLE)
    backoff.progressed()
    clock.now += 100.0
    await backoff.failed(UNAVAILABLE)
    clock.now += 9.0
    await backoff.failed(UNAVAILABLE)


async def test_the_server_may_ask_for_a_longer_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    asking = Unavailable("away", code=grpc.StatusCode.UNAVAILABLE, retry_after=3.0)
    await Backoff(RetryBudget(first=0.1), clock.sleep).failed(asking)
    assert clock.waits == [3.0]


async def test_what_will_not_pass_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    full = ResourceExhausted("full", code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUOTA")
    with pytest.raises(ResourceExhausted):
        await Backoff(RetryBudget(), clock.sleep).failed(full)
    assert clock.waits == []
