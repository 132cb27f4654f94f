"""Which requests quotas refuse, over plain values."""

from __future__ import annotations

import uuid

from retinue.manager.domain.session.spec import KernelSpec, SessionSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.session.admission_quota import exceeded
from retinue.manager.session.drafts import Draft
from retinue.manager.session.drafts import draft as make_draft
from retinue.manager.store.placement.quotas import PROJECT, USER, Limits, Subject


def draft(name: str, *, project: str = "p", priority: int = 10, kind: SessionType = SessionType.BATCH) -> Draft:
    spec = SessionSpec(name, project, "g", kind, priority=priority, kernel=KernelSpec(slots={"cpu": "1"}))
    return make_draft(uuid.uuid4(), "ann", spec)


def quota(kind: str, name: str, *, pending: int | None = None, priority: int | None = None) -> dict[Subject, Limits]:
    return {(kind, name): Limits(max_pending_sessions=pending, highest_priority=priority)}


def test_without_quotas_nothing_is_refused() -> None:
    assert exceeded([draft("a"), draft("b")], {}, {}, ()) == [[], []]


def test_those_accepted_count_for_those_after_them() -> None:
    limits = quota(USER, "ann", pending=3)
    found = exceeded([draft(name) for name in "abcd"], limits, {(USER, "ann"): 1}, ())
    assert [len(item) for item in found] == [0, 0, 1, 1]
    assert found[2] == [("users/ann", "3 of at most 3 sessions of user ann wait already")]


def test_system_sessions_do_not_count() -> None:
    limits = quota(USER, "ann", pending=1, priority=10)
    system = SessionType.SYSTEM
    drafts = [draft("a", kind=system), draft("b"), draft("c"), draft("d", kind=system)]
    found = exceeded([*drafts, draft("e", kind=system, priority=11)], limits, {(USER, "ann"): 0}, ())
    assert [len(item) for item in found] == [0, 0, 1, 0, 1]


def test_those_refused_do_not_count() -> None:
    limits = {**quota(USER, "ann", pending=2), **quota(PROJECT, "p", priority=10)}
    drafts = [draft("a", priority=11), draft("b"), draft("c"), draft("d", project="q")]
    found = exceeded(drafts, limits, {(USER, "ann"): 0}, ())
    assert [len(item) for item in found] == [1, 0, 0, 1]


def test_names_that_are_taken_do_not_count() -> None:
    limits = quota(USER, "ann", pending=2)
    drafts = [draft("a"), draft("taken"), draft("a"), draft("a", project="q"), draft("b")]
    found = exceeded(drafts, limits, {(USER, "ann"): 0}, {("p", "taken")})
    assert [len(item) for item in found] == [0, 0, 0, 0, 1]


def test_the_numbers_given_are_left_alone() -> None:
    pending = {(USER, "ann"): 0}
    exceeded([draft("a")], quota(USER, "ann", pending=2), pending, ())
    assert pending == {(USER, "ann"): 0}


def test_a_limit_of_zero_is_a_limit() -> None:
    limits = quota(USER, "ann", pending=0, priority=0)
    found = exceeded([draft("a", priority=0), draft("b", priority=1)], limits, {(USER, "ann"): 0}, ())
    assert [len(item) for item in found] == [1, 2]
