"""Scheduling policies between messages and what is stored: nothing is lost, nothing unread is accepted,
reading is total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.json_format import ParseDict

from retinue.manager.api.admin.group_policy import changed_policy
from retinue.manager.api.admin.scheduling_policy import FIELDS, merge, to_message, to_policy
from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.domain.session.isolation_policy import IsolationPolicy
from retinue.manager.scheduling import strategies
from retinue.manager.server.fields import Violations
from retinue.manager.v1 import fleet_service_pb2 as fleet_pb
from retinue.manager.v1 import scheduling_policy_pb2 as pb

if TYPE_CHECKING:
    from retinue.manager.store.fleet.groups import GroupPolicy

PATH = "resource_group.scheduling_policy"
COMMON = {
    "reserve-after-tries": "5",
    "reserve-after-seconds": "90",
    "pending-timeout-seconds": "3600",
    "preemption": "requeue",
    "preemption-order": "fewest-sessions",
    "preemption-hold-seconds": "0",
    "preemption-min-runtime-seconds": "30",
}
STORED = [
    Policy("fifo", "concentrated", {"max-tries-before-skip": "3", "slot-priority": "cuda,cpu", **COMMON}),
    Policy("lifo", "dispersed", {"slot-priority": "mem", "max-kernels-per-agent": "4"}),
    Policy("drf", "round-robin", {"max-kernels-per-agent": "4"}),
    Policy(
        "fair-share", "concentrated", {"half-life-days": "3", "look-back-days": "9", "usage-weights": "cpu=2,mem=1"}
    ),
    Policy(
        "external",
        "external",
        {
            "address": "127.0.0.1:1",
            "deadline-ms": "1500",
            "tls": "off",
            "session-fallback": "lifo",
            "agent-fallback": "dispersed",
            "slot-priority": "cpu",
        },
    ),
]


def read(message: pb.SchedulingPolicy) -> Policy:
    """Returns what a message is stored as. Raises InvalidRequest."""
    violations = Violations()
    policy = to_policy(message, violations)
    violations.raise_any()
    return policy


@pytest.mark.parametrize("stored", STORED, ids=lambda policy: f"{policy.session_strategy}-{policy.agent_strategy}")
def test_what_is_stored_comes_back_from_its_message(stored: Policy) -> None:
    assert read(to_message(stored)) == stored
    strategies.validate_policy(stored)


def test_every_option_has_a_field() -> None:
    known = strategies.COMMON_OPTIONS.union(
        *strategies.SESSION_STRATEGIES.values(), *strategies.AGENT_STRATEGIES.values()
    )
    assert known == {option for policy in STORED for option in policy.options}


def test_an_empty_policy_is_the_default() -> None:
    assert read(pb.SchedulingPolicy()) == Policy("drf", "concentrated", {})


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (
            {"sessionStrategy": {"fifo": {"maxTriesBeforeSkip": 1_000_001}}},
            "session_strategy.fifo.max_tries_before_skip",
        ),
        ({"sessionStrategy": {"fairShare": {"halfLife": "90000s"}}}, "session_strategy.fair_share.half_life"),
        ({"sessionStrategy": {"fairShare": {"lookBack": "0s"}}}, "session_strategy.fair_share.look_back"),
        (
            {"sessionStrategy": {"fairShare": {"usageWeights": {"cpu": -1}}}},
            "session_strategy.fair_share.usage_weights",
        ),
        ({"sessionStrategy": {"custom": {"name": "best"}}}, "session_strategy"),
        ({"sessionStrategy": {"custom": {"name": "fifo"}}}, "session_strategy.custom.name"),
        ({"sessionStrategy": {"custom": {"options": {"preemption": "off"}}}}, "session_strategy.custom.options"),
        ({"sessionStrategy": {"external": {}}}, "external_server.address"),
        ({"externalServer": {"address": "127.0.0.1:1"}}, "external_server"),
        (
            {"agentStrategy": {"concentrated": {"slotPriority": ["cpu", "cpu"]}}},
            "agent_strategy.concentrated.slot_priority",
        ),
        ({"maxKernelsPerAgent": -1}, "max_kernels_per_agent"),
        ({"agentStrategy": {"external": {"fallback": 9}}}, "agent_strategy.external.fallback"),
        ({"preemption": {"mode": 9}}, "preemption.mode"),
        ({"preemption": {"hold": "0.5s"}}, "preemption.hold"),
        ({"reservation": {"after": "1000001s"}}, "reservation.after"),
        ({"pendingTimeout": "-1s"}, "pending_timeout"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named_by_its_field(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(ParseDict(given, pb.SchedulingPolicy()))
    assert f"{PATH}.{path}" in [field for field, _ in refused.value.violations]


@pytest.mark.parametrize("options", [[], 7, None, {"preemption": 7}, {"pending-timeout-seconds": "soon"}, {"tls": "?"}])
def test_whatever_is_stored_has_a_message(options: Any) -> None:
    message = to_message(Policy("auction", "teleport", options))
    assert (message.session_strategy.custom.name, message.agent_strategy.custom.name) == ("auction", "teleport")
    assert not message.HasField("pending_timeout")


def test_a_merge_changes_the_fields_given_and_no_other() -> None:
    current = to_message(STORED[0])
    wanted = pb.SchedulingPolicy(preemption=pb.PreemptionPolicy(mode=pb.PREEMPTION_MODE_OFF))
    merged = merge(current, wanted, ["preemption", "reservation"])
    assert not merged.HasField("reservation")
    assert merged.preemption == wanted.preemption
    assert merged.session_strategy == current.session_strategy
    assert merge(current, wanted, FIELDS) == wanted


def changed(options: dict[str, str], given: dict[str, Any], *paths: str) -> GroupPolicy:
    """Returns the columns that an update of a group with these options changes."""
    violations = Violations()
    message = fleet_pb.ResourceGroup(scheduling_policy=ParseDict(given, pb.SchedulingPolicy()))
    columns = changed_policy(
        Policy("fifo", "concentrated", options), IsolationPolicy(), message, FieldMask(paths=paths), violations
    )
    violations.raise_any()
    return columns


def test_another_strategy_leaves_the_bound_of_kernels() -> None:
    given: dict[str, Any] = {"agentStrategy": {"dispersed": {}}}
    columns = changed({"max-kernels-per-agent": "4"}, given, "scheduling_policy.agent_strategy")
    assert columns == {
        "session_strategy": "fifo",
        "agent_strategy": "dispersed",
        "options": {"max-kernels-per-agent": "4"},
    }


NEWER = {"fifo-newer": "1", "preemption": "newer", "max-tries-before-skip": "3"}


def test_options_of_a_newer_version_outlive_a_change_of_others() -> None:
    given = {"reservation": {"afterTries": 5}}
    assert changed(NEWER, given, "scheduling_policy.reservation")["options"] == {**NEWER, "reserve-after-tries": "5"}
    assert changed(NEWER, given)["options"] == {**NEWER, "reserve-after-tries": "5"}


@pytest.mark.parametrize(
    ("given", "path", "left"),
    [
        ({"preemption": {"mode": "PREEMPTION_MODE_REQUEUE"}}, "preemption", {**NEWER, "preemption": "requeue"}),
        ({}, "preemption", {"fifo-newer": "1", "max-tries-before-skip": "3"}),
        ({"sessionStrategy": {"drf": {}}}, "session_strategy", {"preemption": "newer"}),
    ],
    ids=["value", "empty", "strategy"],
)
def test_options_of_a_newer_version_go_with_what_is_replaced(
    given: dict[str, Any], path: str, left: dict[str, str]
) -> None:
    assert changed(NEWER, given, f"scheduling_policy.{path}")["options"] == left


def test_a_policy_that_is_replaced_whole_keeps_nothing() -> None:
    assert changed(NEWER, {"sessionStrategy": {"fifo": {}}}, "scheduling_policy")["options"] == {}
