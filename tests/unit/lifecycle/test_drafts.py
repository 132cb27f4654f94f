"""Many requests at once become what each would become by itself, however much they have in common."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from retinue.client.spec import session_spec
from retinue.manager.api.sessions.requests import draft_all
from retinue.manager.identity.principal import Kind, Membership, Principal
from retinue.manager.server.errors import ApiError, InvalidRequest
from retinue.manager.session.submit import Draft
from retinue.manager.v1 import session_pb2

ANN = Principal(Kind.USER, "ann", "USER", (Membership("default", "MEMBER"),), uuid.uuid4())


def request(**given: Any) -> session_pb2.SessionSpec:
    return session_spec(type="batch", command=["true"], **{"slots": {"cpu": "1", "mem": "64m"}, **given})


def shown(item: Draft | ApiError) -> object:
    """What does not depend on chance."""
    if isinstance(item, ApiError):
        return type(item), item.violations if isinstance(item, InvalidRequest) else str(item)
    session_id, name = item.session["id"], item.session["name"]
    assert item.session["spec"]["name"] == name
    named = {"name": name if not name.startswith("s-") else "random"}
    session = {**item.session, "id": "", **named, "spec": {**item.session["spec"], **named}}
    assert item.kernels[0]["id"] == session_id
    assert [kernel["session_id"] for kernel in item.kernels] == [session_id] * len(item.kernels)
    assert [kernel["id"] for kernel in item.kernels[1:]] == [
        uuid.uuid5(session_id, kernel["hostname"]) for kernel in item.kernels[1:]
    ]
    return session, [{**kernel, "id": "", "session_id": ""} for kernel in item.kernels], item.webhooks


MANY = [
    request(),
    request(),
    request(name="mine"),
    request(name="-wrong"),
    request(name="main1"),
    request(slots={"cpu": "2", "mem": "64m"}),
    request(slots={"cpu": "2"}, cluster_size=3),
    request(slots={"cpu": "2"}, cluster_size=3),
    request(depends_on=["mine"]),
    request(name="mine", depends_on=["mine"]),
    request(priority=-1),
    request(priority=-1, name="so"),
    request(),
]


@pytest.mark.parametrize("messages", [MANY, MANY[::-1]])
def test_each_as_by_itself(messages: Sequence[session_pb2.SessionSpec]) -> None:
    together = draft_all(messages, ANN)
    assert [shown(item) for item in together] == [shown(draft_all([message], ANN)[0]) for message in messages]
    made = [item for item in together if isinstance(item, Draft)]
    assert len(made) == 8
    assert len({item.session["id"] for item in made}) == 8
    assert len({item.session["name"] for item in made}) == 8


def test_what_one_is_given_later_is_not_given_to_those_alike() -> None:
    first, second = (item for item in draft_all([request()] * 2, ANN) if isinstance(item, Draft))
    first.session["spec"]["mounts"] = ["granted"]
    first.parents.append((uuid.uuid4(), True))
    first.kernels[0]["state"] = "SCHEDULED"
    assert (second.session["spec"]["mounts"], second.parents, second.kernels[0]["state"]) == ((), [], "PENDING")
