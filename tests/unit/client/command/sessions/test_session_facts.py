"""What `retinue get` says of a session that has run: how long it waited, and what it held."""

from __future__ import annotations

from retinue.client.command.sessions.session_views import session_columns, session_facts
from retinue.manager.v1 import session_pb2 as pb


def ended(**slots: str) -> pb.Session:
    session = pb.Session(state=pb.SESSION_STATE_TERMINATED, kernels=[pb.Kernel(slots=slots) for _ in range(2)])
    for name, seconds in (("create_time", 1000), ("start_time", 1090), ("end_time", 1090 + 1800)):
        getattr(session, name).FromSeconds(seconds)
    return session


def test_waiting_time_and_slot_hours() -> None:
    facts = dict(session_facts(ended(cpu="3", mem="1g")))
    assert (facts["waited"], facts["ran"], facts["slot hours"]) == ("1m30s", "30m0s", "cpu=3 mem=1g")


def test_amounts_of_a_later_version_are_left_out() -> None:
    assert dict(session_facts(ended(cpu="many")))["slot hours"] == ""


def test_one_that_waits_has_neither() -> None:
    facts = dict(session_facts(pb.Session(state=pb.SESSION_STATE_PENDING)))
    assert (facts["waited"], facts["ran"], facts["slot hours"]) == ("", "", "")


def test_memory_over_time_is_written_for_people() -> None:
    session = ended(cpu="0.191", mem="51266627")
    assert dict(session_facts(session))["slot hours"] == "cpu=0.191 mem=48.9m"


def test_an_end_without_a_verdict_is_an_end() -> None:
    (column,) = (column for column in session_columns(0.0) if column.title == "RESULT")
    stopped = pb.Session(state=pb.SESSION_STATE_TERMINATED, result=pb.SESSION_RESULT_UNDEFINED, exit_code=143)
    failed = pb.Session(state=pb.SESSION_STATE_TERMINATED, result=pb.SESSION_RESULT_FAILED, exit_code=1)
    cancelled = pb.Session(state=pb.SESSION_STATE_CANCELLED, result=pb.SESSION_RESULT_UNDEFINED)
    assert [column.value(session) for session in (stopped, failed, cancelled)] == ["ENDED (143)", "FAILED (1)", "-"]


def test_a_description_is_shown_without_control_characters() -> None:
    facts = dict(session_facts(pb.Session(spec=pb.SessionSpec(description="for the\x1b[2Jpaper"))))
    assert "for the" in facts["description"]
    assert "\x1b" not in facts["description"]
