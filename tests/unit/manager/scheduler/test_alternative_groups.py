"""Which other resource groups have room for a session that waits."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retinue.manager.domain.scheduling.records import GroupRecord, PendingSession
from retinue.manager.domain.session.quota_subjects import Account
from retinue.manager.domain.session.runtime_features import needed, offered
from retinue.manager.scheduler.core.alternative_groups import MAX_NAMED, MAX_TRIED, groups_with_room
from retinue.manager.scheduler.core.cache import Cache, Limit
from tests.unit.manager.scheduler.waiting_sessions import AGENTS
from tests.unit.manager.scheduler.waiting_sessions import waiting as snapshot_waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW = 1000.0


def waiting(slots: Mapping[str, int] | None = None, **changes: Any) -> PendingSession:
    kernels = [{"hostname": "main1", "image": False, "isolation": "PROCESS", "slots": slots or {"cpu": 3000}}]
    return replace(
        snapshot_waiting("ann"), id=uuid.UUID(int=1), resource_group="own", kernels=json.dumps(kernels), **changes
    )


def cache(agents: Mapping[str, int], policies: Mapping[str, Mapping[str, Any]] | None = None) -> Cache:
    """An agent for each group, with so many thousandths of a processor."""
    made = Cache.empty(offered, needed)
    for group, cpu in agents.items():
        policy = GroupRecord(group, "drf", "concentrated", {}, owner_weights={}, round_robin_cursor="", isolations=[])
        made.groups[group] = replace(policy, **(policies or {}).get(group, {}))
        made.agents.put(replace(AGENTS[0], id=f"of-{group}", resource_group=group, capacity={"cpu": cpu}))
    return made


def found(made: Cache, session: PendingSession) -> list[str]:
    made.put_waiting([session])
    return groups_with_room(made, session, sorted(made.groups), NOW)


def test_groups_with_room_are_named_in_order() -> None:
    made = cache({"own": 1000, "a": 2000, "b": 4000, "c": 4000})
    made.add_claim("of-b", Account("b", "zoe", "q"), "cpu", 2000)
    assert found(made, waiting()) == ["c"]
    assert found(made, waiting(slots={"cpu": 2000})) == ["a", "b", "c"]
    assert found(made, waiting(slots={"cpu": 5000})) == []


def test_who_fits_at_home_waits_for_their_turn_there() -> None:
    assert found(cache({"own": 4000, "a": 4000}), waiting()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"open_dependencies": 1, "waits_for": ["other"]},
        {"earliest_start_time": NOW + 1},
        {"hold": True},
        {"next_try": NOW + 1},
        {"agents": ["of-own"], "agents_strict": True},
        {"architecture": "aarch64"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_no_group_cures_is_no_hint(changes: dict[str, Any]) -> None:
    assert found(cache({"own": 1000, "a": 4000}), waiting(**changes)) == []


def test_quotas_hold_there_too() -> None:
    made = cache({"own": 1000, "a": 4000, "b": 4000})
    made.put_quota(("RESOURCE_GROUP", "a"), Limit({"cpu": 2000}, None))
    assert found(made, waiting()) == ["b"]
    made.put_quota(("USER", "ann"), Limit({"cpu": 2000}, None))
    assert found(made, waiting()) == []


def test_the_quota_of_the_own_group_may_be_what_is_in_the_way() -> None:
    made = cache({"own": 4000, "a": 4000})
    made.put_quota(("RESOURCE_GROUP", "own"), Limit({}, 0))
    assert found(made, waiting()) == ["a"]


def test_strategies_of_groups_make_no_difference() -> None:
    strategies = {"a": "fair-share", "b": "external", "c": "lifo"}
    policies: dict[str, dict[str, Any]] = {name: {"session_strategy": value} for name, value in strategies.items()}
    policies["b"]["options"] = {"address": "localhost:1"}
    assert found(cache({"own": 1000, "a": 4000, "b": 4000, "c": 4000}, policies), waiting()) == ["a", "b", "c"]


def test_what_is_tried_and_named_is_bounded() -> None:
    many = cache({"own": 1000} | {f"g{number:03}": 4000 for number in range(100)})
    assert found(many, waiting()) == [f"g{number:03}" for number in range(MAX_NAMED)]
    late = cache({"own": 1000} | {f"g{number:03}": 1000 for number in range(MAX_TRIED)} | {"z": 4000})
    assert found(late, waiting()) == []
