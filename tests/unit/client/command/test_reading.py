"""What people read: tables that fit a terminal, amounts without rows of digits, and what goes on after an interrupt."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner
from google.rpc import error_details_pb2

from retinue.client.command.application import cli, run
from retinue.client.command.sessions import top
from retinue.client.command.sessions.apply import print_refusals
from retinue.client.command.sessions.session_views import session_columns, session_facts
from retinue.client.command.sessions.spec_options import option_of
from retinue.client.command.shell.interrupts import said_when_cancelled
from retinue.client.command.shell.print_error import print_error
from retinue.client.command.shell.selecting import say_none
from retinue.client.command.shell.text import amounts, size
from retinue.client.command.show.output import fitted, table
from retinue.client.errors import FieldViolation, InvalidRequest, NotFound
from retinue.client.settings import Settings, write_context
from retinue.client.spec import session_spec
from retinue.devtools import doctor
from retinue.manager.v1 import kernel_service_pb2, session_service_pb2
from retinue.manager.v1 import session_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from retinue.client.command.show.output import Column


def _width(columns: Sequence[Column[Any]], items: Sequence[Any], terminal: int) -> int:
    shown = [column for column in columns if not column.wide]
    rows = [[column.value(item) for column in shown] for item in items]
    titles, rows = fitted([column.title for column in shown], rows, [column.drop for column in shown], terminal)
    return max(map(len, table(titles, rows, colour=False)))


def test_a_list_of_sessions_fits_narrow_terminals() -> None:
    session = pb.Session(
        id="12345678-1", number=1_234_567, owner="administrator", reason="INSUFFICIENT_CAPACITY", exit_code=137
    )
    session.spec.name, session.spec.type = "a-rather-long-name-of-a-session", pb.SESSION_TYPE_INTERACTIVE
    session.state, session.result = pb.SESSION_STATE_TERMINATED, pb.SESSION_RESULT_FAILED
    session.kernels.add(agent="node-1.example.org")
    session.create_time.FromSeconds(1)
    for terminal in (60, 80):
        assert _width(session_columns(1e6), [session], terminal) <= terminal


def test_top_fits_a_terminal_of_80() -> None:
    stats = kernel_service_pb2.KernelStats(session_name="a-rather-long-name-of-a-session", hostname="main1")
    usage = stats.usage
    usage.memory_bytes, usage.memory_limit_bytes, usage.tasks = 123_456_789, 2**33, 1234
    usage.read_bytes = usage.written_bytes = usage.received_bytes = usage.sent_bytes = 1
    usage.cpu_time.FromSeconds(1)
    usage.sample_time.FromSeconds(10)
    later = kernel_service_pb2.KernelStats()
    later.CopyFrom(stats)
    later.usage.sample_time.FromSeconds(11)
    later.usage.read_bytes = later.usage.written_bytes = 999_000_000
    later.usage.received_bytes = later.usage.sent_bytes = 999_000_000
    for terminal in (60, 80):
        assert _width(top.COLUMNS, [top.Line(later, stats)], terminal) <= terminal


def test_memory_is_shown_for_people() -> None:
    assert amounts({"mem": "24684096k", "cpu": "8"}) == "cpu=8 mem=23.5g"
    assert amounts({"mem": "1536m", "cuda.device": "1"}) == "cuda.device=1 mem=1536m"
    assert amounts({"mem": "strange amount"}) == "mem=strange amount"
    assert (size(2**30, exact=1), size(12 * 2**30), size(1.5 * 2**20)) == ("1g", "12g", "1.5m")


def test_slot_hours_of_memory_are_no_bytes() -> None:
    session = pb.Session(state=pb.SESSION_STATE_TERMINATED, kernels=[pb.Kernel(slots={"mem": "100m"})])
    session.start_time.FromSeconds(0)
    session.end_time.FromSeconds(3521)
    assert dict(session_facts(session))["slot hours"] == "mem=97.8m"


async def test_an_interrupt_says_what_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    entered = asyncio.Event()

    async def wait() -> None:
        async with said_when_cancelled("it goes on"):
            entered.set()
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await entered.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert capsys.readouterr().err == "retinue: it goes on\n"
    async with said_when_cancelled("it goes on"):
        pass
    assert capsys.readouterr().err == ""


def test_nothing_chosen_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    say_none(["a"])
    assert capsys.readouterr().err == ""
    say_none([])
    assert capsys.readouterr().err == "retinue: no session of yours matches\n"


def test_a_pipe_gets_no_blanks_from_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [doctor.Finding("one", doctor.OK, "x", ""), doctor.Finding("another", doctor.ERROR, "y" * 300, "do")]
    monkeypatch.setattr(doctor, "examine", lambda *_: None)
    monkeypatch.setattr(doctor, "evaluate", lambda _found, _subnets: findings)
    lines = CliRunner().invoke(cli, ["doctor"]).output.splitlines()
    assert [line.split()[0] for line in lines] == ["WHAT", "one", "another"]
    assert all(line == line.rstrip() for line in lines)
    assert "y" * 300 in lines[2]


def test_contexts_in_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "contexts.yaml"
    write_context(path, "dev", Settings("127.0.0.1:7440", "rtn_secret", "/ca.pem"))
    monkeypatch.setenv("RETINUE_CONTEXTS", str(path))
    found = [
        {"name": "dev", "endpoint": "127.0.0.1:7440", "ca": "/ca.pem", "hasToken": True, "current": True},
    ]
    assert json.loads(CliRunner().invoke(cli, ["contexts", "ls", "-o", "json"]).output) == {"contexts": found}
    assert yaml.safe_load(CliRunner().invoke(cli, ["contexts", "ls", "-o", "yaml"]).output) == {"contexts": found}
    assert CliRunner().invoke(cli, ["contexts", "ls", "-o", "name"]).output == "dev\n"


@pytest.mark.parametrize("verb", ["use", "rm"])
def test_a_context_that_is_not_there_is_refused_with_those_that_are(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "contexts.yaml"
    write_context(path, "dev", Settings("127.0.0.1:7440", "rtn_secret", "/ca.pem"))
    monkeypatch.setenv("RETINUE_CONTEXTS", str(path))
    assert run(["contexts", verb, "nosuch"]) == 2
    assert capsys.readouterr().err.endswith("; there is dev\n")
    assert run(["contexts", "rm", "dev"]) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["app", "stop", "--grace", "21s", "a", "b"], "must be at most 20s"),
        (["app", "stop", "--grace", "soon", "a", "b"], "is not a time"),
        (["code", "run", "--timeout", "0", "-", "s"], "must be above 0"),
    ],
)
def test_times_are_written_the_same_everywhere(arguments: list[str], expected: str) -> None:
    ended = CliRunner().invoke(cli, arguments)
    assert (ended.exit_code, expected in ended.output) == (2, True), ended.output


@pytest.mark.parametrize(
    "words",
    [
        *(["run"], ["submit"], ["rm"], ["apply"], ["template", "create"], ["endpoint", "create"]),
    ],
)
def test_a_dry_run_has_both_names(words: list[str]) -> None:
    page = CliRunner().invoke(cli, ["help", *words]).output
    assert "--dry-run" in page
    assert "--validate-only" in page


def test_what_the_message_says_is_not_said_twice(capsys: pytest.CaptureFixture[str]) -> None:
    cycle = FieldViolation("specs[0].depends_on", "a depends on b, b on a")
    print_error(InvalidRequest("there is a cycle: a depends on b, b on a", violations=(cycle,)))
    print_error(InvalidRequest("invalid: spec.name", violations=(FieldViolation("spec.name", "is taken"),)))
    assert capsys.readouterr().err.splitlines() == [
        "retinue: there is a cycle: a depends on b, b on a",
        "retinue: invalid: spec.name",
        "  spec.name: is taken",
    ]


def test_a_refused_session_of_several_is_named_by_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    spec = session_spec(name="a", type="batch", command=["true"], slots={"gpu": "1"})
    wrong = error_details_pb2.BadRequest()
    wrong.field_violations.add(field="specs[3].kernel.slots['gpu']", description="no agent has such a slot")
    answer = session_service_pb2.BatchCreateSessionsResponse()
    refused = answer.results.add().refused
    refused.code, refused.message = 3, "specs[3].kernel.slots['gpu']: no agent has such a slot"
    refused.details.add().Pack(wrong)
    assert print_refusals([(spec, "a.yaml:7")], answer)
    assert print_refusals([(spec, "job.sh")], answer, option_of)
    assert capsys.readouterr().err.splitlines() == [
        "a.yaml:7: a refused: kernel.slots['gpu']: no agent has such a slot []",
        "job.sh: a refused: --slots gpu=1: no agent has such a slot []",
    ]


def test_a_session_without_a_result_shows_its_code_alone() -> None:
    session = pb.Session(result=pb.SESSION_RESULT_UNDEFINED, exit_code=143)
    results = next(column for column in session_columns(0.0) if column.title == "RESULT")
    assert results.value(session) == "ENDED (143)"


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("train", "retinue: no such session: train (one of another user is OWNER/train) [NOT_FOUND]"),
        ("ann/train", "retinue: no such session: ann/train [NOT_FOUND]"),
        ("12345678-9abc", "retinue: no such session: 12345678-9abc [NOT_FOUND]"),
    ],
)
def test_a_session_of_another_user_is_hinted_at(typed: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_error(NotFound("no such session", reason="NOT_FOUND", metadata={"id": typed}))
    assert capsys.readouterr().err == f"{shown}\n"
