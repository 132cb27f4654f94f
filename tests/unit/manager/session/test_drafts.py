"""Many requests at once become what each would become by itself, however much they have in common."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retinue.client.spec import session_spec
from retinue.manager.api.sessions.spec_convert import to_requests
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.domain.session.spec import MountSpec
from retinue.manager.identity.principal import Kind, Membership, Principal
from retinue.manager.session.drafts import Draft, Parent, prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.v1 import session_pb2

ANN = Principal(Kind.USER, "ann", "USER", (Membership("default", "MEMBER"),), uuid.uuid4())


def request(**given: Any) -> session_pb2.SessionSpec:
    return session_spec(type="batch", command=["true"], **{"slots": {"cpu": "1", "mem": "64m"}, **given})


def draft_all(messages: Sequence[session_pb2.SessionSpec]) -> list[Draft | Refused]:
    return prepare(to_requests(messages, ANN), ANN)


def shown(item: Draft | Refused) -> object:
    """What does not depend on chance."""
    if isinstance(item, Refused):
        return item.error
    session_id, name = item.session.id, item.session.name
    named = name if not name.startswith("s-") else "random"
    assert item.kernels[0].id == session_id
    assert [kernel.session_id for kernel in item.kernels] == [session_id] * len(item.kernels)
    assert [kernel.id for kernel in item.kernels[1:]] == [
        uuid.uuid5(session_id, kernel.hostname) for kernel in item.kernels[1:]
    ]
    nowhere = uuid.UUID(int=0)
    kernels = [replace(kernel, id=nowhere, session_id=nowhere) for kernel in item.kernels]
    return item.session.renamed(nowhere, named), kernels, replace(item.spec, name=""), item.spec.webhooks


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
    together = draft_all(messages)
    assert [shown(item) for item in together] == [shown(draft_all([message])[0]) for message in messages]
    made = [item for item in together if isinstance(item, Draft)]
    assert len(made) == 8
    assert len({item.session.id for item in made}) == 8
    assert len({item.session.name for item in made}) == 8


def test_what_one_is_given_later_is_not_given_to_those_alike() -> None:
    first, second = (item for item in draft_all([request()] * 2) if isinstance(item, Draft))
    parent = Parent(uuid.uuid4(), settled=True)
    given = first.with_mounts([MountSpec("/data", "/data", root="/")]).with_parents([parent])
    assert (given.spec.mounts[0].root, given.spec.depends_on) == ("/", (str(parent.id),))
    assert (given.session.name, given.parents) == (first.session.name, (parent,))
    assert (second.spec.mounts, second.spec.depends_on, second.parents) == ((), (), ())
