"""What is wrong with a request is said of the option that was typed."""

from __future__ import annotations

import pytest

from retinue.client.command.application import run
from retinue.client.command.inside.exec import hinted
from retinue.client.command.sessions.spec_options import named_options, option_of
from retinue.client.errors import FieldViolation, InvalidRequest
from retinue.client.spec import session_spec

SPEC = session_spec(
    type="batch",
    name="a b",
    command=["true"],
    environment={"KEY": "secret"},
    slots={"cpu": "two"},
    main_slots={"mem": "8gigs"},
    labels={"a": "b"},
    depends_on=["first", "second"],
    time_limit=5.0,
)


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("spec.kernel.slots['cpu']", "--slots cpu=two"),
        ("spec.kernel.slots['gpu']", "--slots gpu"),
        ("spec.roles[0].kernel.slots['mem']", "--main-slots mem=8gigs"),
        ("spec.name", "--name 'a b'"),
        ("spec.project", "--project ''"),
        ("spec.kernel.environment['KEY']", "--env KEY"),
        ("spec.kernel.command", "COMMAND"),
        ("spec.labels['a']", "--label a=b"),
        ("spec.depends_on[1]", "--depends-on second"),
        ("spec.service_ports[0].ports[0]", "--port"),
        ("spec.time_limit", "--time-limit"),
        ("specs[3].kernel.slots['cpu']", "--slots cpu=two"),
        ("spec.something.new", "spec.something.new"),
        ("request_id", "request_id"),
    ],
)
def test_a_field_is_the_option_that_was_typed(path: str, option: str) -> None:
    assert option_of(path, SPEC) == option


def test_violations_are_renamed() -> None:
    violations = (FieldViolation("spec.kernel.slots['cpu']", "is no amount"),)
    with pytest.raises(InvalidRequest) as raised, named_options(SPEC):
        raise InvalidRequest("invalid: spec.kernel.slots['cpu']", violations=violations)
    assert raised.value.message == "invalid: --slots cpu=two"
    assert raised.value.violations == (FieldViolation("--slots cpu=two", "is no amount"),)


@pytest.mark.parametrize(
    ("code", "command", "expected"),
    [
        (127, ["echo hi"], "did you mean `retinue run -- echo hi`, or `retinue run -- sh -c 'echo hi'`?"),
        (126, ["echo hi"], "did you mean"),
        (1, ["echo hi"], ""),
        (127, ["ehco"], ""),
        (127, ["echo", "a b"], ""),
    ],
)
def test_a_command_line_in_one_word_is_explained(
    code: int, command: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hinted(code, command) == code
    said = capsys.readouterr().err
    assert expected in said
    assert bool(said) is bool(expected)


@pytest.mark.parametrize(
    ("typed", "example"),
    [("8000", "web:8000"), ("8000:8000", "web:8000"), ("web", "web:8000"), ("a:b:c:80", "web:80"), (":80", "web:80")],
)
def test_a_port_without_a_name_is_refused_with_an_example(
    typed: str, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "-p", typed, "--", "true"]) == 2
    said = capsys.readouterr().err
    assert f"{typed!r}" in said
    assert example in said
