"""A stored request is read member by member, so that what another version wrote costs only what needs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from retinue.manager.domain.session.service_ports import Reachable
from retinue.manager.domain.session.spec import (
    DEFAULT_GRACE_SECONDS,
    KernelSpec,
    MountSpec,
    RetryPolicy,
    SessionSpec,
    UnreadableSpecError,
)
from retinue.manager.domain.session.states import SessionType
from retinue.manager.domain.session.stored_spec import StoredSpec

SPEC = SessionSpec(
    name="n",
    project="p",
    resource_group="g",
    type=SessionType.BATCH,
    kernel=KernelSpec(image="a", working_directory="/a"),
    roles={"sub": KernelSpec(image="b", working_directory="/b"), "main": KernelSpec()},
    preemptible=True,
    grace_seconds=3.0,
    bootstrap_script="true",
    retry=RetryPolicy(3),
    mounts=(MountSpec("/d", "/data"),),
)
NEWER = {**SPEC.to_json(), "hibernates": True}


@pytest.mark.parametrize("document", [SPEC.to_json(), NEWER])
def test_members_are_read_whatever_stands_beside_them(document: object) -> None:
    stored = StoredSpec(document)
    assert (stored.image("sub"), stored.image("main"), stored.images) == ("b", "a", ["a", "b"])
    assert [stored.working_directory(role) for role in ("sub", "main", "other")] == ["/b", "/a", "/a"]
    assert (stored.bootstraps, stored.preemptible, stored.grace_seconds) == (True, True, 3.0)
    assert (stored.retry, stored.is_retried, stored.mounts) == (RetryPolicy(3), True, [MountSpec("/d", "/data")])
    assert (stored.apps, stored.reachable(()), stored.text("name")) == ((), Reachable(()), "n")


def test_a_whole_request_is_read_only_as_this_version_knows_it() -> None:
    assert StoredSpec(SPEC.to_json()).read() == SPEC
    with pytest.raises(UnreadableSpecError):
        StoredSpec(NEWER).read()


def test_members_that_earlier_versions_left_out() -> None:
    stored = StoredSpec({})
    assert (stored.bootstraps, stored.preemptible, stored.retry, stored.is_retried) == (False, False, None, False)
    assert (stored.grace_seconds, stored.mounts, stored.apps) == (DEFAULT_GRACE_SECONDS, [], ())
    assert stored.working_directory("main") == ""


READERS: dict[str, Callable[[StoredSpec], object]] = {
    "kernel": lambda stored: stored.images,
    "retry": lambda stored: stored.retry,
    "grace_seconds": lambda stored: stored.grace_seconds,
    "mounts": lambda stored: stored.mounts,
    "apps": lambda stored: stored.apps,
    "service_ports": lambda stored: stored.reachable(()),
    "preopen_ports": lambda stored: stored.reachable(()),
}


@pytest.mark.parametrize("member", READERS)
@pytest.mark.parametrize("value", ["text", [7], {"jitter": 2}])
def test_a_member_that_cannot_be_read_says_so(member: str, value: object) -> None:
    stored = StoredSpec({**SPEC.to_json(), member: value})
    with pytest.raises(UnreadableSpecError, match=member):
        READERS[member](stored)


@pytest.mark.parametrize("document", [None, [], 7, "text"])
def test_what_is_no_request_at_all(document: object) -> None:
    stored = StoredSpec(document)
    assert (stored.image("main"), stored.text("name"), stored.is_retried) == ("", "", False)
    with pytest.raises(UnreadableSpecError):
        stored.read()
    for read in READERS.values():
        with pytest.raises(UnreadableSpecError):
            read(stored)
