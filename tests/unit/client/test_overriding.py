"""Single fields by their paths, and what a file does not take from a template."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format

from retinue.client.command.shell.options import override, template_version
from retinue.client.errors import UsageError
from retinue.client.manifest import read_specs, read_templates
from retinue.client.overriding import locate, set_field
from retinue.client.spec import session_spec
from retinue.manager.v1 import session_pb2 as pb


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("slots.cpu", "2", {"kernel": {"slots": {"cpu": "2"}}}),
        ("kernel.slots.cuda.device", "1", {"kernel": {"slots": {"cuda.device": "1"}}}),
        ("environment.A.B=", "x=y", {"kernel": {"environment": {"A.B=": "x=y"}}}),
        ("image", "i:1", {"kernel": {"image": "i:1"}}),
        ("command", "sh -c 'a b'", {"kernel": {"command": ["sh", "-c", "a b"]}}),
        ("roles.w.count", "0", {"roles": [{"role": "w", "count": 0}]}),
        ("roles.w.slots.cpu", "1", {"roles": [{"role": "w", "kernel": {"slots": {"cpu": "1"}}}]}),
        ("labels.a.b/c", "d", {"labels": {"a.b/c": "d"}}),
        ("cluster_mode", "multi-node", {"clusterMode": "CLUSTER_MODE_MULTI_NODE"}),
        ("clusterSize", "3", {"clusterSize": 3}),
        ("priority", "0", {"priority": 0}),
        ("preemptible", "yes", {"preemptible": True}),
        ("time_limit", "1.5h", {"timeLimit": "5400s"}),
        ("earliest_start_time", "2030-01-01T00:00:00Z", {"earliestStartTime": "2030-01-01T00:00:00Z"}),
        ("retry.max_attempts", "3", {"retry": {"maxAttempts": 3}}),
        ("depends_on", "a b", {"dependsOn": ["a", "b"]}),
    ],
)
def test_a_field_set_from_text(path: str, text: str, expected: dict[str, Any]) -> None:
    spec = pb.SessionSpec()
    set_field(spec, path, text)
    assert spec == json_format.ParseDict(expected, pb.SessionSpec())


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "x"),
        (".", "x"),
        ("nothing", "x"),
        ("kernel.nothing", "x"),
        ("kernel", "x"),
        ("kernel.", "x"),
        ("image.x", "x"),
        ("slots", "x"),
        ("roles", "x"),
        ("roles.w", "x"),
        ("mounts", "x"),
        ("mounts.source", "x"),
        ("retry", "x"),
        ("time_limit.seconds", "1"),
        ("time_limit", "soon"),
        ("earliest_start_time", "soon"),
        ("priority", "high"),
        ("preemptible", "perhaps"),
        ("cluster_mode", "both"),
        ("command", "'"),
    ],
)
def test_what_cannot_be_set(path: str, text: str) -> None:
    with pytest.raises(UsageError):
        set_field(pb.SessionSpec(), path, text)


def test_a_role_is_set_once_and_again() -> None:
    spec = pb.SessionSpec()
    for path, text in (("roles.w.count", "1"), ("roles.v.image", "i"), ("roles.w.count", "2")):
        set_field(spec, path, text)
    assert [(role.role, role.count) for role in spec.roles] == [("w", 2), ("v", 0)]


def test_what_is_left_out_needs_a_template() -> None:
    spec = session_spec(template="t", template_version=2)
    assert (spec.template.name, spec.template.version, spec.type, spec.cluster_size) == ("t", 2, 0, 0)
    override(spec, {"slots.cpu": "1"}, ["environment.LOG", "roles.w", "command"])
    assert list(spec.template.override_mask.paths) == ["kernel.environment.LOG", "roles.w", "kernel.command"]
    assert locate("roles.w.command") == ("roles", "w", "kernel", "command")
    with pytest.raises(UsageError):
        override(session_spec(type="interactive"), {}, ["command"])


@pytest.mark.parametrize(
    ("path", "text", "mask"),
    [
        ("image", "", ["kernel.image"]),
        ("roles.w.image", "", ["roles.w.kernel.image"]),
        ("command", "", ["kernel.command"]),
        ("hold", "no", ["hold"]),
        ("image", "i", []),
        ("environment.A", "", []),
        ("priority", "0", []),
    ],
)
def test_a_field_that_is_set_to_nothing_is_not_taken_from_the_template(path: str, text: str, mask: list[str]) -> None:
    spec = session_spec(template="t")
    override(spec, {path: text}, [])
    assert list(spec.template.override_mask.paths) == mask
    plain = session_spec(type="interactive")
    override(plain, {path: text}, [])
    assert not plain.HasField("template")


@pytest.mark.parametrize(("text", "expected"), [("", ("", 0)), ("t", ("t", 0)), ("t@12", ("t", 12))])
def test_names_with_versions(text: str, expected: tuple[str, int]) -> None:
    assert template_version(text) == expected


@pytest.mark.parametrize("text", ["t@", "t@0", "t@-1", "t@x", "t@²", f"t@{2**31}"])
def test_versions_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        template_version(text)


def test_null_in_a_file_takes_nothing_from_the_template() -> None:
    text = """
    template: t
    type: null
    kernel: {command: null, environment: {A: null, B: x}}
    roles: [{role: w, count: null, kernel: {slots: {cpu: null}}}]
    mounts: [{source: /a, target: /b, writable: null}]
    """
    ((spec, line),) = read_specs(text, "f")
    assert line == 2
    assert spec.template.name == "t"
    assert list(spec.template.override_mask.paths) == [
        "type",
        "kernel.command",
        "kernel.environment.A",
        "roles.w.count",
        "roles.w.kernel.slots.cpu",
    ]
    assert dict(spec.kernel.environment) == {"B": "x"}
    # Without a template, it is as if the field were not there.
    ((plain, _),) = read_specs("type: batch\ntemplate: null\nkernel: {command: null}", "f")
    assert plain == pb.SessionSpec(type=pb.SESSION_TYPE_BATCH, kernel=pb.KernelSpec())


def test_masks_are_lists_of_paths() -> None:
    ((spec, _),) = read_specs("template: {name: t, overrideMask: [kernel.environment.A_B, labels]}", "f")
    assert list(spec.template.override_mask.paths) == ["kernel.environment.A_B", "labels"]
    with pytest.raises(UsageError, match=r"f:1: override_mask must be a list"):
        read_specs("template: {name: t, overrideMask: labels}", "f")


def test_templates_in_files() -> None:
    text = "templates:\n- {name: a, spec: {type: batch}}\n- {name: b, version: 3, etag: v3, createTime: 2030-01-01T00:00:00Z}"
    found = read_templates(text, "f")
    assert [(template.name, line) for template, line in found] == [("a", 2), ("b", 3)]
    assert found[0][0].spec.type == pb.SESSION_TYPE_BATCH
    with pytest.raises(UsageError, match="unknown field 'kind' of Template"):
        read_templates("{name: a, kind: x}", "f")
    with pytest.raises(UsageError, match="there is no template in it"):
        read_templates("", "f")
