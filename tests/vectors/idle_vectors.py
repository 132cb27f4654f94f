"""Vectors on what is left before a session is ended as idle, run against the function that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retinue.manager.domain.idle.policy import IdlePolicy, SessionObservation, Status, evaluate, remaining_time
from retinue.manager.domain.session.states import SessionType

if TYPE_CHECKING:
    from collections.abc import Callable

Vector = dict[str, Any]


def remaining(vector: Vector) -> None:
    """By the function itself, and by the verdict on a session, which is never warned here
    and shows nothing below zero.
    """
    cases, expected = vector["input"]["cases"], vector["expected"]["remaining"]
    got = [remaining_time(case["now"], case["baseline"], case["timeout"], case["grace_end"]) for case in cases]
    assert got == expected
    for case, left in zip(cases, expected, strict=True):
        policy = IdlePolicy(interaction=case["timeout"], grace=case["grace_end"], warning=0.0)
        verdict = evaluate(policy, SessionObservation(SessionType.INTERACTIVE, 0.0, case["baseline"]), case["now"])
        (check,) = verdict.checks
        assert check.remaining == max(0, left)
        assert (check.status is Status.GRACE) == (case["now"] < (case["grace_end"] or 0))
        assert (verdict.end is not None) == (left <= 0)


RUNNERS: dict[str, Callable[[Vector], None]] = {"idle_remaining_time": remaining}
