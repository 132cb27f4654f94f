"""Words and lengths of time that callers give, and those that they get."""

from __future__ import annotations

import datetime as dt
from typing import Any, get_args

import pytest

from retinue.client import enum_names, words
from retinue.client.aio import UsageError, session_spec
from retinue.client.time_spans import as_duration
from retinue.manager.v1 import fleet_service_pb2
from retinue.types.v1 import code_pb2

# As options are written, or as states are shown.
GIVEN = {
    words.SessionType: enum_names.SESSION_TYPE,
    words.ClusterMode: enum_names.CLUSTER_MODE,
    words.Isolation: enum_names.ISOLATION,
    words.PullPolicy: enum_names.PULL_POLICY,
    words.AgentChoice: enum_names.AGENT_CHOICE,
    words.ReplicaPlacement: enum_names.REPLICA_PLACEMENT,
    words.UserRole: enum_names.USER_ROLE,
    words.ProjectRole: enum_names.PROJECT_ROLE,
    words.QuotaKind: enum_names.QUOTA_KIND,
    words.IdleChecker: enum_names.IDLE_CHECKER,
    words.Egress: fleet_service_pb2.EgressPolicy.DESCRIPTOR,
}
SHOWN = {
    words.SessionState: enum_names.SESSION_STATE,
    words.SessionResult: enum_names.SESSION_RESULT,
    words.CodeStatus: code_pb2.CodeStatus.DESCRIPTOR,
}


@pytest.mark.parametrize(("literal", "enum"), [*GIVEN.items(), *SHOWN.items()])
def test_types_have_the_words_of_the_contract(literal: Any, enum: Any) -> None:
    names = [enum_names.name_of(enum, value.number) for value in enum.values if value.number]
    assert list(get_args(literal)) == (
        names if literal in SHOWN else [name.lower().replace("_", "-") for name in names]
    )
    for word in get_args(literal):
        assert enum_names.name_of(enum, enum_names.number(enum, word)) in names


def test_words_are_taken_in_any_case_and_wrong_ones_are_named() -> None:
    assert session_spec(type="Batch", cluster_mode="SINGLE_NODE") == session_spec(  # type: ignore[arg-type]
        type="batch", cluster_mode="single-node"
    )
    with pytest.raises(UsageError, match="did you mean single-node"):
        session_spec(type="batch", cluster_mode="single-nod")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="isolation: expected str, not 3"):
        session_spec(type="batch", isolation=3)  # type: ignore[arg-type]


def test_lengths_of_time_are_seconds_or_timedeltas() -> None:
    spans: dict[str, Any] = {"termination_grace": 1.5, "time_limit": 90, "retry_backoff": 60, "max_attempts": 2}
    deltas: dict[str, Any] = {
        name: dt.timedelta(seconds=value) if name != "max_attempts" else value for name, value in spans.items()
    }
    spec = session_spec(type="batch", time_warning=("INT", 7.25), earliest_start_time=1_900_000_000.5, **spans)
    moment = dt.datetime.fromtimestamp(1_900_000_000.5, dt.UTC)
    same = session_spec(
        type="batch", time_warning=("INT", dt.timedelta(seconds=7.25)), earliest_start_time=moment, **deltas
    )
    assert spec == same
    assert (spec.termination_grace.nanos, spec.time_limit.seconds) == (500_000_000, 90)
    assert as_duration(2.5) == as_duration(dt.timedelta(seconds=2.5))
    with pytest.raises(UsageError, match="time_limit"):
        session_spec(type="batch", time_limit="90")  # type: ignore[arg-type]
