"""Requests that are refused: which reason stands for which error, and what the others of the call learn of it."""

from __future__ import annotations

import uuid
from typing import get_args

import pytest

from retinue.client.spec import session_spec
from retinue.manager.api.sessions.refusal_convert import to_error
from retinue.manager.api.sessions.requests import result_message
from retinue.manager.api.sessions.spec_convert import to_requests
from retinue.manager.domain.session import refusals
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.identity.principal import Kind, Membership, Principal
from retinue.manager.server.errors import InvalidRequest
from retinue.manager.session.dependency_links import link
from retinue.manager.session.drafts import Candidates, prepare

ANN = Principal(Kind.USER, "ann", "USER", (Membership("default", "MEMBER"),), uuid.uuid4())

REASONS = (
    (refusals.InvalidFields((("spec.name", "is wrong"),)), "INVALID_FIELD"),
    (refusals.ProjectDenied("p"), "PROJECT_DENIED"),
    (refusals.TemplateNotFound("t", 3), "NOT_FOUND"),
    (refusals.FeatureUnavailable("batch", "CODE_EXECUTION", "code execution"), "FEATURE_UNAVAILABLE"),
    (refusals.ImageNotAllowed("r/i", "r", "g"), "IMAGE_NOT_ALLOWED"),
    (refusals.MountNotAllowed("/data", writable=True), "MOUNT_NOT_ALLOWED"),
    (refusals.QuotaExceeded((("users/ann", "too many"),)), "QUOTA_EXCEEDED"),
    (refusals.NameTaken("n"), "NAME_TAKEN"),
    (refusals.EndpointManaged("e"), "ENDPOINT_MANAGED"),
    (refusals.BatchRefused(2), "BATCH_REFUSED"),
    (refusals.DependencyRefused("spec.depends_on[0]", "n"), "DEPENDENCY_REFUSED"),
)


@pytest.mark.parametrize(("reason", "expected"), REASONS)
def test_each_reason_is_an_error(reason: refusals.Reason, expected: str) -> None:
    assert to_error(reason).reason == expected


def test_every_reason_is_listed_here() -> None:
    assert {type(reason) for reason, _ in REASONS} == set(get_args(refusals.Reason))


def test_a_mount_of_an_account_without_numbers_says_what_to_do() -> None:
    refused = refusals.MountNotAllowed("/home/ann", writable=True, without_owner="ann")
    assert "`retinue users update ann --file-owner UID:GID`" in str(to_error(refused))
    assert "the account of ann has no numbers" in refusals.words(refused)


def test_paths_of_fields_include_the_position() -> None:
    refused = Refused("n", refusals.InvalidFields((("spec.depends_on[1]", "is given twice"),)))
    shown = result_message(7, refused, {}, shown_id=True).refused
    assert shown == InvalidRequest([("specs[7].depends_on[1]", "is given twice")]).status()


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
    assert isinstance(found.refused[1].reason, refusals.InvalidFields)
    assert found.refused[0].reason == refusals.DependencyRefused("spec.depends_on[0]", "b")
    found.refuse({2: refusals.NameTaken("a")})
    links.refuse_dependents(found)
    assert sorted(found.refused) == [0, 1, 2]


async def test_a_cycle_is_refused_as_such_and_what_depends_on_it_too() -> None:
    found = candidates(("a", ["b"]), ("b", ["a"]), ("c", ["b"]), ("d", []))
    await link(None, "ann", found)  # type: ignore[arg-type]
    assert [found.refused[n].reason for n in (0, 1)] == [
        refusals.InvalidFields((("spec.depends_on", text),))
        for text in ("is a cycle: a → b → a", "is in the cycle of a")
    ]
    assert found.refused[2].reason == refusals.DependencyRefused("spec.depends_on[0]", "b")
    assert [item.session.name for item in found.drafts.values()] == ["d"]
