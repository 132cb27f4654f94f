"""Which sessions of a file are made when it is applied again."""

from __future__ import annotations

import pytest

from retinue.client.command.sessions.apply_plan import APPLIED, labelled, plan
from retinue.manager.v1 import session_pb2

LIVE = (session_pb2.SESSION_STATE_RUNNING, session_pb2.SESSION_RESULT_UNDEFINED)
GOOD = (session_pb2.SESSION_STATE_TERMINATED, session_pb2.SESSION_RESULT_SUCCESS)
BAD = (session_pb2.SESSION_STATE_TERMINATED, session_pb2.SESSION_RESULT_FAILED)
ENDED = (session_pb2.SESSION_STATE_CANCELLED, session_pb2.SESSION_RESULT_UNDEFINED)
Outcome = tuple[session_pb2.SessionState.ValueType, session_pb2.SessionResult.ValueType]


def spec(name: str, *depends_on: str, **changes: str) -> session_pb2.SessionSpec:
    return labelled(session_pb2.SessionSpec(name=name, depends_on=depends_on, **changes))  # type: ignore[arg-type]


def session(of: session_pb2.SessionSpec, outcome: Outcome) -> session_pb2.Session:
    return session_pb2.Session(id=f"id-{of.name}", spec=of, state=outcome[0], result=outcome[1])


def made(specs: list[session_pb2.SessionSpec], outcomes: dict[str, Outcome], *, again: bool = False) -> list[str]:
    found = {one.name: session(one, outcomes[one.name]) for one in specs if one.name in outcomes}
    return [step.spec.name for step in plan(specs, found, again=again) if step.kept is None]


PIPELINE = [spec("a"), spec("b", "a"), spec("c", "b"), spec("d")]


@pytest.mark.parametrize(
    ("outcomes", "names"),
    [
        ({}, ["a", "b", "c", "d"]),
        (dict.fromkeys("abcd", LIVE), []),
        (dict.fromkeys("abcd", GOOD), []),
        ({"a": GOOD, "b": BAD, "c": ENDED, "d": LIVE}, ["b", "c"]),
        # What a step made is not what its successor was made from.
        ({"a": ENDED, "b": GOOD, "c": GOOD, "d": GOOD}, ["a", "b", "c"]),
        ({"a": BAD, "b": LIVE, "c": LIVE, "d": GOOD}, ["a"]),
    ],
)
def test_what_failed_is_made_again_with_what_depends_on_it(outcomes: dict[str, Outcome], names: list[str]) -> None:
    assert made(PIPELINE, outcomes) == names


def test_again_runs_what_has_succeeded() -> None:
    assert made(PIPELINE, {"a": GOOD, "b": GOOD, "c": LIVE, "d": GOOD}, again=True) == ["a", "b", "d"]


def test_another_request_of_the_name_is_made() -> None:
    other = spec("d", project="p")
    steps = plan([spec("d")], {"d": session(other, LIVE)}, again=False)
    assert [step.kept for step in steps] == [None]
    # One that `apply` did not make has no digest to know it by.
    steps = plan([spec("d")], {"d": session(session_pb2.SessionSpec(name="d"), LIVE)}, again=False)
    assert [step.kept for step in steps] == [None]


def test_the_label_is_of_the_request_without_it() -> None:
    once = spec("a")
    assert labelled(once) == once
    assert once.labels[APPLIED] != spec("a", "b").labels[APPLIED]
    assert APPLIED not in spec("").labels, "no other call could know it again"
