"""What explanations advise to do."""

from __future__ import annotations

import uuid

from retinue.manager.api.sessions.convert import advice_of
from retinue.manager.domain.session.states import Result, SessionState
from retinue.manager.store.sessions.dependencies import ParentRecord


def parent(name: str, state: SessionState, priority: int) -> ParentRecord:
    return ParentRecord(uuid.UUID(int=priority), 1, name, False, state, Result.UNDEFINED, priority)


def test_what_waits_with_a_lower_priority_is_named_with_the_command_that_raises_it() -> None:
    parents = [
        parent("low", SessionState.PENDING, 1),
        parent("same", SessionState.PENDING, 90),
        parent("running", SessionState.RUNNING, 2),
    ]
    (advice,) = advice_of(90, "gpu", parents, may_be_passed=False)
    assert advice.startswith("low, which it waits for, waits itself, with priority 1; ")
    assert advice.endswith(f": retinue priority {parents[0].id} 90")


def test_who_may_be_passed_for_ever_is_told_of_reservations() -> None:
    (advice,) = advice_of(10, "gpu", [], may_be_passed=True)
    assert advice.endswith("retinue groups update gpu --reserve-after 1h")
    assert list(advice_of(10, "gpu", [], may_be_passed=False)) == []
