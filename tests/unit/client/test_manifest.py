"""Sessions read from YAML: what is taken, and what is refused at which line."""

from __future__ import annotations

import pytest
import yaml
from google.protobuf import json_format

from retinue.client.errors import UsageError
from retinue.client.manifest import read_manifest, read_specs
from retinue.client.spec import session_spec
from retinue.client.time_spans import parse_span
from retinue.manager.v1 import session_pb2

PIPELINE = """\
# comment
name: prepare
type: batch
kernel:
  command: [sleep, 1]
  slots: {cpu: 2, mem: 1g}
---
- name: train
  type: SESSION_TYPE_BATCH
  dependsOn: [prepare]
  kernel: {command: ["true"]}
  earliestStartTime: 2030-01-01T00:00:00Z
  terminationGrace: 3s
  preemptible: true
  retry: {maxAttempts: 3, on_failure: yes}
"""


def test_documents_and_lists() -> None:
    (prepare, first), (train, second) = read_specs(PIPELINE, "f")
    assert (first, second) == (2, 8)
    assert prepare == session_spec(
        type="batch", name="prepare", command=["sleep", "1"], slots={"cpu": "2", "mem": "1g"}, cluster_size=0
    )
    assert list(train.depends_on) == ["prepare"]
    assert (train.earliest_start_time.seconds, train.termination_grace.seconds, train.preemptible) == (
        1893456000,
        3,
        True,
    )
    assert (train.retry.max_attempts, train.retry.on_failure) == (3, True)


def test_what_is_printed_can_be_read_again() -> None:
    spec = session_spec(
        type="batch",
        name="a",
        command=["x"],
        max_attempts=2,
        retry_backoff=1.5,
        depends_on=["b"],
        earliest_start_time=2e9,
    )
    shown = session_pb2.Session(id="1", spec=spec, state=session_pb2.SESSION_STATE_RUNNING, owner="me")
    text = yaml.safe_dump(json_format.MessageToDict(shown))
    assert read_specs(text, "f")[0][0] == spec
    listed = yaml.safe_dump(
        {"sessions": [json_format.MessageToDict(shown)], "position": {"revision": "7", "incarnation": "i"}}
    )
    assert [found for found, _ in read_specs(listed, "f")] == [spec]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type: batch\nnme: x", "f:2: unknown field 'nme' of SessionSpec"),
        ("type: batch\nkernel:\n  cmd: [x]", "f:3: unknown field 'cmd' of KernelSpec"),
        ("type: batch\ntype: batch", "f:2: 'type' is given twice"),
        ("dependsOn: [a]\ndepends_on: [b]", "f:2: field 'depends_on' is given twice"),
        ("type: bath", "f:1: type: "),
        ("name: [a]", "f:1: name must be a single value"),
        ("dependsOn: a", "f:1: dependsOn must be a list"),
        ("preemptible: 3", "f:1: preemptible must be true or false"),
        ("type: bath", "f:1: type: 'bath' is not one of interactive, batch, inference, system; did you mean batch?"),
        ("clusterSize: many", "f:1: clusterSize must be a whole number, not 'many'"),
        ("terminationGrace: soon", "f:1: terminationGrace must be a time such as 30s, 5m, 1h30m or 2d, not 'soon'"),
        ("time_limit: 5x", "f:1: time_limit must be a time such as 30s"),
        (
            "earliestStartTime: today",
            "f:1: earliestStartTime must be a moment such as 2026-01-31T12:00:00Z, not 'today'",
        ),
        ("nam: x", "f:1: unknown field 'nam' of SessionSpec; did you mean name?"),
        ("command: [x]", "f:1: unknown field 'command' of SessionSpec; write it under kernel"),
        ("- just text", "f:1: there must be fields here"),
        ("spec: {type: batch}\nstatus: x", "f:2: unknown field 'status' of Session"),
        ("a: [", "f:1: "),
        ("? [a]\n: b", "f:1: is not the name of a field"),
        ("", "f: there is no session in it"),
        ("\0", "f: "),
    ],
)
def test_errors_have_their_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_specs(text, "f")
    assert str(raised.value).startswith(message)


def test_all_mistakes_are_told_at_once() -> None:
    text = "nme: x\ntype: 3x\nkernel:\n  cmd: [x]\n  slots: [cpu]\n---\nclusterSize: two\n---\n- type: [batch]\n- just text\n"
    with pytest.raises(UsageError) as raised:
        read_specs(text, "f")
    assert [line.split(": ")[0] for line in str(raised.value).splitlines()] == [
        *("f:1", "f:2", "f:4", "f:5", "f:7", "f:9", "f:10")
    ]


def test_of_very_many_mistakes_the_rest_is_counted() -> None:
    with pytest.raises(UsageError) as raised:
        read_specs("\n".join(f"field{n}: x" for n in range(50)), "f")
    assert str(raised.value).splitlines()[-1] == "f: 30 more"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("30m", 1800),
        ("1h30m", 5400),
        ("90s", 90),
        ("90", 90),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("1d", 86400),
    ],
)
def test_times_are_written_as_on_the_command_line(text: str, seconds: float) -> None:
    ((spec, _),) = read_specs(f"timeLimit: {text}\nretry: {{backoff: {text}}}", "f")
    assert (spec.time_limit.ToNanoseconds(), spec.retry.backoff.ToNanoseconds()) == (seconds * 1e9, seconds * 1e9)
    revision = f"name: e\nrevision: {{startTimeout: {text}}}"
    ((endpoint, _),) = read_manifest(revision, "f", default="endpoint").endpoints
    assert endpoint.revision.start_timeout.ToNanoseconds() == seconds * 1e9


@pytest.mark.parametrize("text", ["", "h", "30m2h", "1h1h", "-5s", "1e3s", "9999999999999s", "2h30"])
def test_what_is_no_time(text: str) -> None:
    assert parse_span(text) is None


def test_aliases_do_not_make_much_of_little() -> None:
    first = "- {type: batch, dependsOn: &a [" + "x, " * 1000 + "x]}\n"
    with pytest.raises(UsageError, match="there is too much in it"):
        read_specs(first + "- {type: batch, dependsOn: *a}\n" * 1100, "f")


def test_lists_of_aliases_end() -> None:
    inner = "\n".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10) if n else 'null, null'}]" for n in range(12))
    with pytest.raises(UsageError, match="there is too much in it"):
        read_specs(inner, "bombs.yaml")


@pytest.mark.parametrize("text", ["[" * 5000, "- " * 5000 + "x", "{a: " * 5000, "[" * 40 + "]" * 40])
def test_what_is_nested_too_deeply_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        read_specs(text, "deep.yaml")
