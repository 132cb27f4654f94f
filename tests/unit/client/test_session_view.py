"""Events folded into a session."""

from __future__ import annotations

import pytest

from retinue.client.aio import fold
from retinue.manager.v1 import session_pb2 as pb
from tests.unit.client.journal import ID, Journal, session


def test_a_whole_life_folds_into_the_session_as_it_ended() -> None:
    journal = Journal()
    journal.whole_life(exit_code=3)
    view = None
    for event in journal.events:
        view = fold(view, event)
    assert view is not None
    assert (view.state, view.result, view.exit_code) == (pb.SESSION_STATE_TERMINATED, pb.SESSION_RESULT_FAILED, 3)
    assert (view.reason, view.network, view.etag) == ("COMMAND_FAILED", pb.NETWORK_KIND_BRIDGE, "")
    assert [(k.hostname, k.state, k.agent, k.exit_code, k.address) for k in view.kernels] == [
        ("main1", pb.KERNEL_STATE_TERMINATED, "n1", 3, "10.128.0.2"),
        ("sub1", pb.KERNEL_STATE_TERMINATED, "n2", 143, "10.128.0.3"),
    ]
    moments = {event.revision: event.create_time.seconds for event in journal.events}
    assert view.schedule_time.seconds == moments[2]
    assert view.start_time.seconds < view.end_time.seconds == moments[len(moments)]


def test_folding_changes_neither_the_session_nor_the_event() -> None:
    journal = Journal()
    journal.whole_life()
    before = fold(None, journal.events[0])
    assert before is not None
    kept = before.SerializeToString(deterministic=True)
    events = [event.SerializeToString(deterministic=True) for event in journal.events]
    view: pb.Session | None = before
    for event in journal.events[1:]:
        view = fold(view, event)
    assert before.SerializeToString(deterministic=True) == kept
    assert [event.SerializeToString(deterministic=True) for event in journal.events] == events


def test_a_kernel_ended_when_its_agent_says_else_with_the_event() -> None:
    journal = Journal()
    journal.kernel(0, pb.KERNEL_STATE_TERMINATED)
    journal.kernel(1, pb.KERNEL_STATE_TERMINATED)
    journal.events[1].kernel_moved.end_time.seconds = 17
    view: pb.Session | None = session()
    for event in journal.events:
        view = fold(view, event)
    assert view is not None
    assert view.kernels[0].end_time == journal.events[0].create_time
    assert view.kernels[1].end_time.seconds == 17


def test_a_rolled_back_kernel_is_nowhere() -> None:
    journal = Journal()
    journal.kernel(1, pb.KERNEL_STATE_CREATING, agent="n2")
    journal.kernel(1, pb.KERNEL_STATE_PENDING, agent="n2")
    placed = fold(session(), journal.events[0])
    assert placed is not None
    assert placed.kernels[1].agent == "n2"
    back = fold(placed, journal.events[1])
    assert back is not None
    assert (back.kernels[1].agent, back.kernels[1].address, back.kernels[1].attempt) == ("", "", 1)


def test_a_pending_reason_replaces_reason_and_conditions() -> None:
    changed = pb.ReasonChanged(reason="NO_CAPACITY", message="cpu is short")
    changed.conditions.add(type="AGENT_LOST")
    after = fold(session(), pb.SessionEvent(revision=4, session_id=ID, reason_changed=changed))
    assert after is not None
    assert (after.reason, after.message, after.etag, len(after.conditions)) == ("NO_CAPACITY", "cpu is short", "", 1)
    assert [kernel.hostname for kernel in after.kernels] == ["main1", "sub1"]
    assert (after.state, after.spec.name) == (pb.SESSION_STATE_PENDING, "work")
    again = pb.ReasonChanged(reason="NO_CAPACITY")
    gone = fold(after, pb.SessionEvent(revision=5, session_id=ID, reason_changed=again))
    assert gone is not None
    assert (gone.reason, gone.message, len(gone.conditions)) == ("NO_CAPACITY", "", 0)


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (pb.SESSION_STATE_TERMINATING, ["AGENT_LOST", "OOM_KILLED"]),
        (pb.SESSION_STATE_TERMINATED, ["OOM_KILLED"]),
        (pb.SESSION_STATE_CANCELLED, []),
        (pb.SESSION_STATE_PENDING, []),
    ],
)
def test_what_was_killed_for_want_of_memory_outlives_the_end(state: pb.SessionState.ValueType, left: list[str]) -> None:
    before = session()
    for kind in ("AGENT_LOST", "OOM_KILLED"):
        before.conditions.add(type=kind)
    move = pb.SessionEvent(revision=4, session_id=ID, session_moved=pb.SessionMove(to_state=state))
    after = fold(before, move)
    assert after is not None
    assert [condition.type for condition in after.conditions] == left


def test_an_update_replaces_name_priority_and_hold() -> None:
    updated = pb.SessionUpdated(name="other", priority=7, hold=True, user="ann")
    after = fold(session(), pb.SessionEvent(revision=4, session_id=ID, session_updated=updated))
    assert after is not None
    assert (after.spec.name, after.spec.priority, after.spec.hold, after.etag) == ("other", 7, True, "")
    again = pb.SessionUpdated(name="other", priority=7)
    released = fold(after, pb.SessionEvent(revision=5, session_id=ID, session_updated=again))
    assert released is not None
    assert not released.spec.hold


def test_what_does_not_concern_the_session_changes_nothing() -> None:
    journal = Journal()
    journal.moved(pb.SESSION_STATE_RUNNING)
    moved = journal.events[0]
    assert fold(None, moved) is None
    other = session()
    other.id = "another"
    assert fold(other, moved) == other
    unknown = pb.SessionEvent(revision=9, session_id=ID)
    assert fold(session(), unknown) == session()
    stranger = pb.SessionEvent(revision=9, session_id=ID, kernel_moved=pb.KernelMove(kernel_id="none", hostname="sub9"))
    assert fold(session(), stranger) == session()
