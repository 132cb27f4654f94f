"""A spec comes back as it was stored; of one that cannot be read, what can be stays known."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import orjson
import pytest

from retinue.manager.domain.session import spec_codec
from retinue.manager.domain.session.apps import AppSpec
from retinue.manager.domain.session.images import PullPolicy
from retinue.manager.domain.session.isolation import Isolation
from retinue.manager.domain.session.service_ports import PortRange, ServicePortSpec
from retinue.manager.domain.session.spec import (
    KernelSpec,
    MountSpec,
    RetryPolicy,
    SessionSpec,
    SftpSpec,
    TemplateOrigin,
    TimeWarning,
    WebhookSpec,
)
from retinue.manager.domain.session.spec_codec import VERSION, Encoder, UnreadableSpec, decode, encode, known_part
from retinue.manager.domain.session.states import SessionType

PLAIN = SessionSpec("n", "p", "g", SessionType.BATCH)
FULL = SessionSpec(
    name="n",
    project="p",
    resource_group="g",
    type=SessionType.BATCH,
    single_node=False,
    cluster_size=3,
    priority=0,
    kernel=KernelSpec("i", ("a", ""), {"A": ""}, {"cpu": "1"}, "64m", Isolation.VM, "/data", PullPolicy.ALWAYS),
    roles={"main": KernelSpec(), "sub": KernelSpec(command=("c",))},
    counts=(("main", 1), ("sub", 2)),
    labels={"x": ""},
    grace_seconds=0.0,
    agents=("n1",),
    agents_strict=True,
    architecture="aarch64",
    endpoint="e",
    replica_placement="PACK",
    time_limit_seconds=0.5,
    preemptible=True,
    bootstrap_script="true",
    earliest_start_time=0.0,
    depends_on=("one",),
    retry=RetryPolicy(3, on_failure=True, backoff_seconds=0.0),
    mounts=(MountSpec("/d", "/data", writable=True, root="/", uid=7, gid=8),),
    webhooks=(WebhookSpec("http://x/", ("ENDED",)),),
    service_ports=(ServicePortSpec("web", "http", (80, 81), "localhost"),),
    preopen_ports=(PortRange(1, 2),),
    template=TemplateOrigin("id", "t", "", 7),
    apps=(AppSpec("a", ("x",), {"A": "b"}, "/w", ("--a",), ("A",)),),
    sftp=SftpSpec(("key",), 7, "022"),
    isolations={"main": Isolation.PROCESS},
    hold=True,
    runs_after=("two",),
    stop_signal="INT",
    time_warning=TimeWarning("USR1", 60.0, started_only=True),
    runs_after_failure=("three",),
    runs_after_label="key",
    description="why",
)


def stored(spec: SessionSpec, **changes: object) -> dict[str, Any]:
    """Returns a document as a column gives it back."""
    document: dict[str, Any] = orjson.loads(orjson.dumps(encode(spec)))
    return {**document, **changes}


def test_every_field_comes_back() -> None:
    assert all(getattr(FULL, item.name) != item.default for item in fields(SessionSpec)), "nothing is a default"
    assert set(stored(FULL)) == {"version", *(item.name for item in fields(SessionSpec))}
    assert decode(stored(FULL)) == FULL


def test_what_is_empty_is_left_out_and_what_has_a_default_is_not() -> None:
    assert set(stored(PLAIN)) == {
        *("version", "name", "project", "resource_group", "type", "kernel"),
        *("single_node", "cluster_size", "priority", "grace_seconds"),
    }
    assert decode(stored(PLAIN)) == PLAIN


def test_no_secret_is_stored() -> None:
    secretive = replace(PLAIN, webhooks=(WebhookSpec("http://x/", (), "s3cret"),))
    assert "s3cret" not in str(encode(secretive))
    assert decode(stored(secretive)) == secretive, "the secret is not a part of what is compared"


def test_sessions_that_share_a_spec_have_their_own_names() -> None:
    encoder = Encoder()
    assert [decode(encoder.document(FULL, name)) for name in "ab"] == [replace(FULL, name=name) for name in "ab"]
    assert encode(FULL)["name"] == "n"


@pytest.mark.parametrize("version", [None, 0, -1, "1", True, 1.0, [], 10**30])
def test_a_document_of_no_version_is_refused_in_words(version: object) -> None:
    assert isinstance(found := decode(stored(FULL, version=version)), UnreadableSpec)
    assert "version" in found.error
    assert found.known == FULL


def test_a_newer_document_is_refused_and_what_is_known_of_it_counts() -> None:
    newer = stored(FULL, version=VERSION + 1, hibernates=True, retry={"max_attempts": 3, "jitter": 2})
    assert isinstance(found := decode(newer), UnreadableSpec)
    assert found.error == (
        f"the spec is of version {VERSION + 1}, and this manager reads versions up to {VERSION}: upgrade it"
    )
    assert found.known == replace(FULL, retry=RetryPolicy(3))
    assert known_part(found) is found.known


def test_a_field_that_older_managers_must_not_ignore_raises_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    of_retry = tuple(
        (name, left_out, VERSION + 1 if name == "on_failure" else since)
        for name, left_out, since in spec_codec._FIELDS[RetryPolicy]  # noqa: SLF001  # as if it had come later
    )
    monkeypatch.setattr(spec_codec, "_FIELDS", {**spec_codec._FIELDS, RetryPolicy: of_retry})  # noqa: SLF001
    assert encode(replace(PLAIN, retry=RetryPolicy(3)))["version"] == 1
    assert encode(replace(PLAIN, retry=RetryPolicy(3, on_failure=True)))["version"] == VERSION + 1


def test_members_that_may_be_ignored_are() -> None:
    later = stored(FULL, hibernates={"at": 7}, retry={**stored(FULL)["retry"], "jitter": 2})
    assert decode(later) == FULL


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"kernel": None}, "kernel"),
        ({"kernel": {"command": [1]}}, "kernel.command.0"),
        ({"kernel": {"isolation": "ENCLAVE"}}, "kernel.isolation"),
        ({"isolations": {"main": "ENCLAVE"}}, "isolations.main"),
        ({"isolations": ["VM"]}, "isolations"),
        ({"roles": 7}, "roles"),
        ({"retry": {"max_attempts": "1"}}, "retry.max_attempts"),
        ({"type": "SWARM"}, "type"),
        ({"cluster_size": "2"}, "cluster_size"),
        ({"hold": "true"}, "hold"),
        ({"mounts": [{"source": 1, "target": "x"}]}, "mounts.0.source"),
        ({"preopen_ports": "x"}, "preopen_ports"),
    ],
)
def test_a_damaged_document_says_where(change: dict[str, object], path: str) -> None:
    assert isinstance(found := decode(stored(FULL, **change)), UnreadableSpec)
    assert found.error.startswith(f"the spec cannot be read: {path}: ")
    ((name, _),) = change.items()
    assert replace(found.known, **{name: getattr(FULL, name)}) == FULL, "all others are known"


@pytest.mark.parametrize("name", ["name", "project", "resource_group", "type"])
def test_a_document_without_what_each_has_is_unreadable(name: str) -> None:
    document = stored(FULL)
    del document[name]
    assert isinstance(decode(document), UnreadableSpec)


@pytest.mark.parametrize("document", [None, [], 7, "text", {}])
def test_what_is_no_document_at_all(document: object) -> None:
    assert isinstance(found := decode(document), UnreadableSpec)
    assert (found.known.of_role("main"), found.known.retry, found.known.mounts) == (KernelSpec(), None, ())


def test_an_error_names_no_value() -> None:
    assert isinstance(found := decode(stored(FULL, kernel={"environment": {"A": ["s3cret"]}})), UnreadableSpec)
    assert "s3cret" not in found.error
