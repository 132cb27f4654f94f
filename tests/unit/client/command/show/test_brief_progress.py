"""Lines of a run on no terminal: its start, its end, and what is wrong."""

from __future__ import annotations

import pytest

from retinue.client.command.show.session_texts import brief_changes, summary
from retinue.manager.v1 import session_pb2 as pb

_P, _S, _R = pb.SESSION_STATE_PENDING, pb.SESSION_STATE_SCHEDULED, pb.SESSION_STATE_RUNNING
_G, _T = pb.SESSION_STATE_TERMINATING, pb.SESSION_STATE_TERMINATED
_USUAL = [(_P, "QUEUED"), (_S, ""), (_R, ""), (_G, "COMMAND_ENDED"), (_T, "COMMAND_ENDED")]


def _lines(steps: list[tuple[pb.SessionState.ValueType, str]], *, quiet: bool = False) -> list[str]:
    before: pb.Session | None = None
    found: list[str] = []
    for state, reason in steps:
        after = pb.Session(spec=pb.SessionSpec(name="a"), state=state, reason=reason)
        found += brief_changes(before, after, quiet=quiet)
        before = after
    return found


@pytest.mark.parametrize(
    ("steps", "expected", "quiet"),
    [
        (_USUAL, ["a: RUNNING", "a: TERMINATED (COMMAND_ENDED)"], []),
        (
            [(_P, "QUEUED"), (_P, "SHORT"), (_P, "SHORT"), (_P, "QUOTA"), (_R, ""), (_T, "COMMAND_ENDED")],
            ["a: PENDING (SHORT)", "a: PENDING (QUOTA)", "a: RUNNING", "a: TERMINATED (COMMAND_ENDED)"],
            [],
        ),
        (
            [(_R, ""), (_P, "QUEUED"), (_R, ""), (_T, "COMMAND_ENDED")],
            ["a: RUNNING", "a: PENDING (QUEUED)", "a: RUNNING", "a: TERMINATED (COMMAND_ENDED)"],
            [],
        ),
        (
            [(_R, ""), (_G, "TIME_LIMIT"), (_T, "TIME_LIMIT")],
            ["a: RUNNING", "a: TERMINATING (TIME_LIMIT)", "a: TERMINATED (TIME_LIMIT)"],
            ["a: TERMINATING (TIME_LIMIT)", "a: TERMINATED (TIME_LIMIT)"],
        ),
    ],
)
def test_start_end_and_what_is_wrong(
    steps: list[tuple[pb.SessionState.ValueType, str]], expected: list[str], quiet: list[str]
) -> None:
    assert _lines(steps) == expected
    assert _lines(steps, quiet=True) == quiet


def test_a_command_that_failed_speaks_for_itself_and_a_kernel_does_not() -> None:
    before = pb.Session(spec=pb.SessionSpec(name="a"), state=_R)
    after = pb.Session(spec=pb.SessionSpec(name="a"), state=_G, reason="COMMAND_FAILED", message="sub1 exited with 3")
    assert brief_changes(before, after, quiet=True) == ["a: TERMINATING (COMMAND_FAILED: sub1 exited with 3)"]
    after.exit_code = 3
    assert brief_changes(before, after, quiet=True) == []


def test_conditions_are_told_once_also_quietly() -> None:
    before = pb.Session(spec=pb.SessionSpec(name="a"), state=_R)
    after = pb.Session(spec=pb.SessionSpec(name="a"), state=_R)
    after.conditions.add(type="OutOfMemory", message="main1")
    assert brief_changes(before, after, quiet=True) == ["a: OutOfMemory: main1"]
    assert brief_changes(after, after) == []


def test_what_keeps_an_agent_from_creating_kernels_is_told_once() -> None:
    placed, waits, moved = (
        pb.Session(spec=pb.SessionSpec(name="a"), state=state, message=message)
        for state, message in ((_S, ""), (_S, "agent n1: it builds ssh"), (pb.SESSION_STATE_PREPARING, ""))
    )
    assert brief_changes(placed, waits) == ["a: SCHEDULED (agent n1: it builds ssh)"]
    assert brief_changes(placed, waits, quiet=True) == brief_changes(waits, waits) == brief_changes(waits, moved) == []


def test_a_long_wait_is_shown_as_in_the_live_view() -> None:
    view = pb.Session(spec=pb.SessionSpec(name="a"), state=_P)
    assert summary(view, 1809.0) == "a: PENDING after 30m9s"
    assert summary(view, 1.26) == "a: PENDING after 1.3 s"
