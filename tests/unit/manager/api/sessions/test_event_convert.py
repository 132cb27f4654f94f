"""The first entry of a session in the journal, written by another version: what can be read of it is shown."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest

from retinue.manager.api.sessions.event_convert import event_message
from retinue.manager.domain.session.events import parse_event
from retinue.manager.store.journal.journal import Event
from retinue.manager.v1 import session_pb2 as pb

ID = uuid.UUID(int=7)
SESSION: dict[str, Any] = {
    "id": str(ID),
    "name": "train",
    "owner": "ann",
    "project": "lab",
    "resource_group": "default",
    "type": "BATCH",
    "cluster_mode": "SINGLE_NODE",
    "cluster_size": 0,
    "priority": 10,
    "endpoint": "",
}
ENTRY: dict[str, Any] = {
    "session": SESSION,
    "spec": {"version": 1000, "name": "train", "kernel": {"command": ["true"]}},
    "kernels": [],
    "reason": "QUEUED",
    "message": "it waits",
}


def shown(entry: dict[str, Any]) -> pb.SessionEvent:
    stored = json.dumps(entry)
    what = parse_event("CREATED", stored)
    return event_message(Event(3, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), ID, "ann", "lab", what))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"session": {**SESSION, "type": "LATER"}},
        {"session": {**SESSION, "later": [1]}},
        {"spec": 7},
        {"later": [1]},
    ],
)
def test_values_of_another_version_cost_what_they_are_about_only(changes: dict[str, Any]) -> None:
    message = shown({**ENTRY, **changes})
    assert message.WhichOneof("change") == "created"
    session = message.created
    assert (session.id, session.owner, session.reason, session.message) == (str(ID), "ann", "QUEUED", "it waits")
    assert (session.state, session.spec.name, session.spec.project) == (pb.SESSION_STATE_PENDING, "train", "lab")


@pytest.mark.parametrize("missing", SESSION)
def test_without_a_field_an_entry_is_shown_as_one_of_its_session(missing: str) -> None:
    message = shown({**ENTRY, "session": {name: value for name, value in SESSION.items() if name != missing}})
    assert (message.revision, message.session_id, message.WhichOneof("change")) == (3, str(ID), None)
