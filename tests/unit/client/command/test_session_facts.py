"""What `retinue get` says of a session that has run: how long it waited, and what it held."""

from __future__ import annotations

from retinue.client.command.sessions import session_facts
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
