"""Small pure things: requests from options, enum words, waits between tries."""

from __future__ import annotations

import random

import pytest

from retinue.client import UsageError, enum_names, session_spec
from retinue.client.backoff import Backoff, RetryBudget
from retinue.manager.v1 import session_pb2 as pb


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
        termination_grace=1.5,
    )
    assert (spec.type, spec.cluster_mode, spec.cluster_size) == (pb.SESSION_TYPE_BATCH, pb.CLUSTER_MODE_MULTI_NODE, 3)
    assert (spec.name, spec.project, spec.resource_group) == ("count", "p", "g")
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
    with pytest.raises(UsageError, match="INTERACTIVE, BATCH"):
        session_spec(type="banana")
    with pytest.raises(UsageError):
        session_spec(command=["true"])
    with pytest.raises(UsageError, match="list of arguments"):
        session_spec(type="batch", command="echo hello")
    with pytest.raises(UsageError, match="unknown options: comand"):
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


def test_waits_double_up_to_the_longest_with_full_jitter() -> None:
    retry_budget = RetryBudget(first=1.0, longest=8.0, total=100.0)
    ceilings = [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    for seed in range(50):
        backoff = Backoff(retry_budget, random.Random(seed))
        waits = [backoff.next_wait(now=0.0) for _ in ceilings]
        assert all(wait is not None and 0 <= wait <= ceiling for wait, ceiling in zip(waits, ceilings, strict=True))
    backoff = Backoff(retry_budget, random.Random(1))
    assert max(wait or 0 for wait in (backoff.next_wait(now=0.0) for _ in range(500))) > 7


def test_patience_counts_from_the_first_failure_since_progress() -> None:
    backoff = Backoff(RetryBudget(total=10.0), random.Random(1))
    assert backoff.next_wait(now=100.0) is not None
    assert backoff.next_wait(now=109.9) is not None
    assert backoff.next_wait(now=110.0) is None
    backoff.progressed()
    assert backoff.next_wait(now=200.0) is not None
    assert backoff.next_wait(now=209.0) is not None


def test_the_server_may_ask_for_a_longer_wait() -> None:
    assert (Backoff(RetryBudget(first=0.1), random.Random(1)).next_wait(now=0.0, at_least=3.0) or 0) >= 3.0
