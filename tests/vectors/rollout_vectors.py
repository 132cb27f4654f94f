"""Vectors about single steps of rolling updates (backendai.json): what of the old revision goes,
and what of the new one comes then.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from retinue.manager.domain.endpoints.replicas import Create, Drain, Fleet, Replica, Revision
from retinue.manager.domain.endpoints.rollout import Amount, Rolling, Rollout, RolloutPolicy, plan
from retinue.manager.domain.endpoints.states import ReplicaState, RolloutState
from tests.vectors.records import Record, overlaid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Vector = dict[str, Any]

OLD, NEW = 1, 2


def run(vector: Vector) -> None:
    """All replicas that live are ready. `current` is what was last wanted of the old revision:
    here only what lives counts.
    """
    given, expected = vector["input"], vector["expected"]
    found = [step(overlaid(given, case)) for case in given.get("cases", [Record({})])]
    for key, got in zip(("next_current", "next_target"), zip(*found, strict=True), strict=True):
        wanted = expected[key]
        assert list(got) == (wanted if isinstance(wanted, list) else [wanted]), key


def step(given: Mapping[str, Any]) -> tuple[int, int]:
    """The replicas of the old and of the new revision, once those that may go have gone and
    those that may come have come.
    """
    live = min(given["current"], given["current_live"])
    old = live if given.get("has_old_revision", True) else 0
    revisions = [OLD] * old + [NEW] * given["target"]
    replicas = [
        Replica(uuid.UUID(int=number), revision, ReplicaState.READY, number)
        for number, revision in enumerate(revisions, start=1)
    ]
    fleet = Fleet(given["goal"], {OLD: Revision(OLD, 100), NEW: Revision(NEW, 0)}, replicas, now=0)
    strategy = Rolling(Amount(given["surge"]), Amount(given["unavailable"]))
    rollout = Rollout(OLD, NEW, RolloutState.PROGRESSING, 0, 0, RolloutPolicy(strategy))
    gone = {action.session_id for action in plan(fleet, rollout) if isinstance(action, Drain)}
    fleet = replace(fleet, replicas=[item for item in replicas if item.session_id not in gone])
    made = sum(
        action.number for action in plan(fleet, rollout) if isinstance(action, Create) and action.revision == NEW
    )
    return len(fleet.of([OLD])), len(fleet.of([NEW])) + made


RUNNERS: dict[str, Callable[[Vector], None]] = {"rolling_update_step": run}
