"""Requests that are refused: what their callers learn, and what the others of the call learn of it."""

from __future__ import annotations

import uuid

from retinue.client.spec import session_spec
from retinue.manager.api.sessions.requests import result_message
from retinue.manager.api.sessions.spec_convert import to_requests
from retinue.manager.domain import errors, preconditions
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.identity.principal import Kind, Membership, Principal
from retinue.manager.session.dependency_links import link
from retinue.manager.session.drafts import Candidates, prepare
from retinue.rpc.errors import status_of

ANN = Principal(Kind.USER, "ann", "USER", (Membership("default", "MEMBER"),), uuid.uuid4())


def test_a_mount_of_an_account_without_numbers_says_what_to_do() -> None:
    refused = errors.MountNotAllowed("/home/ann", writable=True, without_owner="ann")
    assert "`retinue users update ann --file-owner UID:GID`" in str(refused)


def test_paths_of_fields_include_the_position() -> None:
    refused = Refused("n", errors.InvalidRequest((("spec.depends_on[1]", "is given twice"),)))
    shown = result_message(7, refused, {}, shown_id=True).refused
    assert shown == status_of(errors.InvalidRequest([("specs[7].depends_on[1]", "is given twice")]))


def candidates(*asked: tuple[str, list[str]]) -> Candidates:
    messages = [session_spec(type="batch", command=["true"], name=name, depends_on=on) for name, on in asked]
    return Candidates(prepare(to_requests(messages, ANN), ANN))


async def test_a_chain_is_linked_by_ids() -> None:
    found = candidates(("c", ["b"]), ("b", ["a"]), ("a", []))
    await link(None, "ann", found)  # type: ignore[arg-type]  # nothing outside the call is asked for
    assert not found.refused
    assert [[parent.id for parent in found.drafts[n].parents] for n in range(3)] == [
        [found.drafts[1].session.id],
        [found.drafts[2].session.id],
        [],
    ]


async def test_what_depends_on_a_refused_one_is_refused() -> None:
    found = candidates(("c", ["b"]), ("b", ["-"]), ("a", []))
    links = await link(None, "ann", found)  # type: ignore[arg-type]
    assert isinstance(found.refused[1].error, errors.InvalidRequest)
    assert found.refused[0].error == preconditions.DependencyRefused("spec.depends_on[0]", "b")
    found.refuse({2: errors.NameTaken("session", "a")})
    links.refuse_dependents(found)
    assert sorted(found.refused) == [0, 1, 2]


async def test_a_cycle_is_refused_as_such_and_what_depends_on_it_too() -> None:
    found = candidates(("a", ["b"]), ("b", ["a"]), ("c", ["b"]), ("d", []))
    await link(None, "ann", found)  # type: ignore[arg-type]
    assert [found.refused[n].error for n in (0, 1)] == [
        errors.InvalidRequest((("spec.depends_on", text),))
        for text in ("is a cycle: a → b → a", "is in the cycle of a")
    ]
    assert found.refused[2].error == preconditions.DependencyRefused("spec.depends_on[0]", "b")
    assert [item.session.name for item in found.drafts.values()] == ["d"]
