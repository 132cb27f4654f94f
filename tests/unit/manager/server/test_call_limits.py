"""How many calls a caller may make: at a time and a second, each caller for itself, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from google.protobuf.descriptor_pb2 import MethodOptions
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.server.authorization import METHODS, Access
from retinue.manager.server.call_limits import (
    _WEIGHTS,
    COSTS,
    DEFAULT_LIMITS,
    Caller,
    CallerClass,
    CallLimits,
    Limit,
    Weight,
    weight_of,
)
from retinue.manager.store.postgres.lanes import POOL_SIZES, Lane
from retinue.manager.v1 import (
    account_service_pb2,
    app_service_pb2,
    endpoint_service_pb2,
    fleet_service_pb2,
    kernel_service_pb2,
    session_service_pb2,
    template_service_pb2,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICES = [
    service
    for module in (
        account_service_pb2,
        app_service_pb2,
        endpoint_service_pb2,
        fleet_service_pb2,
        kernel_service_pb2,
        session_service_pb2,
        template_service_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
]

LIGHT = "/retinue.manager.v1.SessionService/GetSession"
HEAVY = "/retinue.manager.v1.SessionService/ListSessions"
BULK = "/retinue.manager.v1.SessionService/BatchCreateSessions"
ADA, BOB = Caller(CallerClass.USER, "ada"), Caller(CallerClass.USER, "bob")
ROOT, NODE = Caller(CallerClass.ADMIN, "root"), Caller(CallerClass.AGENT, "node")
SMALL: Mapping[tuple[CallerClass, Weight], Limit] = {
    (CallerClass.USER, Weight.LIGHT): Limit(3, 10, 5),
    (CallerClass.USER, Weight.HEAVY): Limit(2, 1, 3),
}


def test_so_many_run_at_a_time() -> None:
    limits = CallLimits(SMALL)
    assert limits.begin(ADA, HEAVY, 0) is None
    assert limits.begin(ADA, HEAVY, 0) is None
    refused = limits.begin(ADA, HEAVY, 0)
    assert refused is not None
    assert refused.description == "2 of at most 2 calls of this kind run"
    assert refused.retry_seconds > 0
    # Neither other calls of the same caller nor those of others are affected.
    assert limits.begin(ADA, LIGHT, 0) is None
    assert limits.begin(BOB, HEAVY, 0) is None
    limits.end(ADA, HEAVY)
    assert limits.begin(ADA, HEAVY, 0) is None


def test_so_many_begin_a_second() -> None:
    limits = CallLimits(SMALL)
    for _ in range(3):
        assert limits.begin(ADA, HEAVY, 100) is None
        limits.end(ADA, HEAVY)
    refused = limits.begin(ADA, HEAVY, 100.25)
    assert refused is not None
    assert refused.description == "more than 1 calls of this kind a second"
    assert refused.retry_seconds == pytest.approx(0.75)
    # A refused call costs nothing: a caller that waits as long as it was asked to is served.
    assert limits.begin(ADA, HEAVY, 100.25 + refused.retry_seconds) is None


def test_what_is_not_used_is_saved_up_to_the_burst_only() -> None:
    limits = CallLimits(SMALL)
    for now in (0, 1e6):
        for _ in range(3):
            assert limits.begin(ADA, HEAVY, now) is None
            limits.end(ADA, HEAVY)
        assert limits.begin(ADA, HEAVY, now) is not None


def test_asking_again_and_again_does_not_shorten_the_wait() -> None:
    limits = CallLimits(SMALL)
    for _ in range(3):
        assert limits.begin(ADA, HEAVY, 0) is None
        limits.end(ADA, HEAVY)
    for hundredths in range(5, 100, 5):
        assert limits.begin(ADA, HEAVY, hundredths / 100) is not None
    assert limits.begin(ADA, HEAVY, 1.001) is None


def test_streams_are_not_among_the_calls_that_run() -> None:
    limits = CallLimits(SMALL)
    at_a_time = SMALL[CallerClass.USER, Weight.LIGHT].at_a_time
    assert limits.begin(ADA, LIGHT, 0, stream=True) is None
    for _ in range(at_a_time):
        assert limits.begin(ADA, LIGHT, 0) is None
    assert limits.begin(ADA, LIGHT, 1) is not None
    assert limits.begin(ADA, LIGHT, 1, stream=True) is None


def test_streams_count_when_they_are_opened() -> None:
    limits = CallLimits(SMALL)
    for _ in range(5):
        assert limits.begin(ADA, LIGHT, 0, stream=True) is None
    assert limits.begin(ADA, LIGHT, 0, stream=True) is not None
    assert limits.begin(ADA, LIGHT, 1, stream=True) is None


def test_memory_is_bounded_and_running_calls_are_not_forgotten() -> None:
    limits = CallLimits(SMALL, max_callers=10)
    assert limits.begin(ADA, HEAVY, 0) is None
    assert limits.begin(ADA, HEAVY, 0) is None
    for number in range(1000):
        other = Caller(CallerClass.USER, f"user-{number}")
        assert limits.begin(other, LIGHT, 0) is None
        limits.end(other, LIGHT)
    assert len(limits) <= 11
    assert limits.begin(ADA, HEAVY, 0) is not None
    limits.end(ADA, HEAVY)
    limits.end(ADA, HEAVY)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 0.5)), max_size=60))
def test_no_more_than_the_limit_ever_runs_or_begins(steps: list[tuple[bool, float]]) -> None:
    limits, limit = CallLimits(SMALL), SMALL[CallerClass.USER, Weight.LIGHT]
    running, now, began = 0, 0.0, 0
    for begins, pause in steps:
        now += pause
        if begins and limits.begin(ADA, LIGHT, now) is None:
            running, began = running + 1, began + 1
        elif not begins and running:
            limits.end(ADA, LIGHT)
            running -= 1
        assert running <= limit.at_a_time
        assert began <= limit.burst + limit.rate * now + 1e-6


def test_every_class_has_limits_and_those_of_others_are_wider_than_those_of_users() -> None:
    assert set(_WEIGHTS) <= set(METHODS)
    assert (weight_of(LIGHT), weight_of(HEAVY), weight_of(BULK)) == (Weight.LIGHT, Weight.HEAVY, Weight.BULK)
    for kind in CallerClass:
        assert (kind, Weight.LIGHT) in DEFAULT_LIMITS
    for weight in Weight:
        user, admin = DEFAULT_LIMITS[CallerClass.USER, weight], DEFAULT_LIMITS[CallerClass.ADMIN, weight]
        assert user.at_a_time < admin.at_a_time
        assert user.rate < admin.rate


def test_calls_that_may_read_all_rows_of_a_kind_are_heavy() -> None:
    ours = [method for method in METHODS if method.startswith("/retinue.")]
    lists = {method for method in ours if method.rpartition("/")[2].startswith("List")}
    # Of one node's disk, in bounded time.
    lists = {method for method in lists if not method.endswith("/ListFiles")}
    assert lists <= {method for method, weight in _WEIGHTS.items() if weight is Weight.HEAVY}
    others = ("SessionService/GetSessionGraph", "SessionService/ExplainSession", "TemplateService/RenderTemplate")
    for name in (*others, "FleetService/VerifyLedger", "AccountService/ListQuotas"):
        assert weight_of(f"/retinue.manager.v1.{name}") is Weight.HEAVY


def test_calls_with_effects_count_as_writes() -> None:
    reads = {
        f"/{service.full_name}/{method.name}"
        for service in SERVICES
        for method in service.methods
        if method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
    }
    unary = {
        f"/{service.full_name}/{method.name}"
        for service in SERVICES
        for method in service.methods
        if not (method.client_streaming or method.server_streaming)
    }
    assert reads & unary
    weights = {method: weight_of(method) for method in unary - reads if METHODS[method] in {Access.USER, Access.ADMIN}}
    assert weights
    assert Weight.LIGHT not in weights.values(), [name for name, weight in weights.items() if weight is Weight.LIGHT]
    assert {method for method in reads & unary if weight_of(method) is Weight.WRITE} == set()
    for weight in Weight:
        assert COSTS[weight] >= COSTS[Weight.LIGHT]


def test_calls_that_take_long_leave_connections_to_other_users() -> None:
    held = sum(DEFAULT_LIMITS[CallerClass.USER, weight].at_a_time for weight in (Weight.HEAVY, Weight.BULK))
    assert held < POOL_SIZES[Lane.USERS]


def test_users_who_ask_for_too_much_take_nothing_of_administrators_and_agents() -> None:
    limits = CallLimits()
    refused = sum(
        limits.begin(Caller(CallerClass.USER, f"user-{user}"), HEAVY, 0) is not None
        for user in range(100)
        for _ in range(100)
    )
    assert refused == 100 * (100 - DEFAULT_LIMITS[CallerClass.USER, Weight.HEAVY].at_a_time)
    for caller in (ROOT, NODE, BOB):
        assert all(limits.begin(caller, method, 0) is None for method in (LIGHT, HEAVY, BULK))
