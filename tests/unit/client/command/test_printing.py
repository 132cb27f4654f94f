"""What the command line prints, and with which code it ends."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING

import click
import grpc
import pytest
import yaml

from retinue.client import errors
from retinue.client.command.admin.groups import share_text
from retinue.client.command.application import run
from retinue.client.command.sessions.following import event_line
from retinue.client.command.sessions.logs import HostLines
from retinue.client.command.shell import options
from retinue.client.command.shell.exit_codes import of_error, of_session
from retinue.client.command.shell.print_error import print_error
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import amounts, since, span
from retinue.client.command.show.output import print_message, table
from retinue.client.command.show.session_texts import changes, kernel_counts, outcome, summary
from retinue.client.logs import LogChunk
from retinue.client.session_view import fold
from retinue.manager.v1 import fleet_service_pb2
from retinue.manager.v1 import session_pb2 as pb
from tests.unit.client.journal import ID, Journal, session

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.attack("escape-sequences")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("zwölf €", "zwölf €"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("two\nlines\r\t", r"two\nlines\r\t"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud800", r"\ud800"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
    ],
)
def test_nothing_moves_the_cursor(text: str, expected: str) -> None:
    assert safe(text) == expected


def test_times() -> None:
    assert [span(value) for value in (None, -3, 0.9, 59, 60, 3599, 3600, 90000)] == [
        "-",
        "0s",
        "0s",
        "59s",
        "1m0s",
        "59m59s",
        "1h0m",
        "1d",
    ]
    view = pb.Session()
    assert since(view, "create_time", 100.0) == "-"
    view.create_time.seconds = 40
    assert since(view, "create_time", 100.0) == "1m0s"


def test_a_table_is_aligned_by_width_on_screen() -> None:
    lines = table(["NAME", "X"], [["a", "1"], ["日本", "22"], ["long name", "3"]], colour=False)
    assert lines == ["NAME        X", "a           1", "日本        22", "long name   3"]
    assert table(["NAME", "X"], [], colour=False) == ["NAME   X"]
    assert "\x1b[32m" in table(["STATE", "X"], [["RUNNING", "1"]], colour=True)[1]


def test_messages_are_proto_json(capsys: pytest.CaptureFixture[str]) -> None:
    view = session()
    print_message("json", view)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["spec"]["clusterSize"]) == ("SESSION_STATE_PENDING", 2)
    print_message("yaml", view)
    assert yaml.safe_load(capsys.readouterr().out) == shown


def test_maps_are_printed_in_the_order_of_their_keys(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"name{number:02}" for number in range(20)]
    spec = pb.SessionSpec(labels=dict.fromkeys(reversed(names), "x"))
    spec.retry.backoff.FromSeconds(1)
    for part in (spec.kernel, spec.roles.add().kernel, spec.roles.add().kernel):
        part.environment.update(dict.fromkeys(reversed(names), "x"))
    print_message("yaml", spec)
    text = capsys.readouterr().out
    assert [line.split(":")[0].strip() for line in text.splitlines() if "name" in line] == names * 4
    print_message("json", spec)
    assert json.loads(capsys.readouterr().out) == yaml.safe_load(text)


def test_amounts_and_shares() -> None:
    assert amounts({"mem": "4g", "cpu": "2"}) == "cpu=2 mem=4g"
    assert amounts({}) == "-"
    share = fleet_service_pb2.Share(numerator=12, denominator=18)
    assert share_text(share) == "2/3 (66.7 %)"
    assert share_text(fleet_service_pb2.Share()) == "-"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: errors.UsageError("x"), 2),
        (lambda: errors.NotFound("x"), 3),
        (lambda: errors.PermissionDenied("x"), 4),
        (lambda: errors.Unauthenticated("x"), 4),
        (lambda: errors.WaitTimeout("x"), 5),
        (lambda: errors.ResourceExhausted("x"), 6),
        (lambda: errors.ResourceExhausted("x", reason="TOO_MANY_WRONG_TOKENS"), 4),
        (lambda: errors.ResourceExhausted("x", reason="TOO_MANY_CALLS"), 7),
        (lambda: errors.Unavailable("x"), 7),
        (lambda: errors.InvalidRequest("x"), 1),
        (lambda: errors.ServerFault("x", code=grpc.StatusCode.INTERNAL), 1),
        (lambda: errors.SessionEnded("x", _ended(exit_code=9)), 9),
        (lambda: errors.SessionEnded("x", _ended(exit_code=0)), 1),
    ],
)
def test_exit_codes_of_errors(make: Callable[[], errors.RetinueError], code: int) -> None:
    assert of_error(make(), {}) == code
    moved = code if code in (2, 9) or isinstance(make(), errors.SessionEnded) else 77
    assert of_error(make(), {"RETINUE_EXIT_ERROR": "77"}) == moved
    for nonsense in ("0", "256", "x", "-1"):
        assert of_error(make(), {"RETINUE_EXIT_ERROR": nonsense}) == code


def _ended(exit_code: int | None, kind: pb.SessionType.ValueType = pb.SESSION_TYPE_BATCH) -> pb.Session:
    ended = session(pb.SESSION_STATE_TERMINATED)
    ended.spec.type = kind
    if exit_code is not None:
        ended.exit_code = exit_code
    return ended


def test_exit_codes_of_sessions() -> None:
    assert of_session(_ended(137)) == 137
    assert of_session(_ended(0)) == 0
    assert of_session(_ended(None)) == 1
    assert of_session(_ended(None, pb.SESSION_TYPE_INTERACTIVE)) == 0


def test_lines_of_a_life() -> None:
    journal = Journal()
    journal.whole_life(exit_code=3)
    lines: list[str] = []
    view: pb.Session | None = None
    for event in journal.events:
        before, view = view, fold(view, event)
        assert view is not None
        lines += changes(before, view)
    assert lines[:4] == [
        "work: PENDING",
        "work: SCHEDULED",
        "work: main1 SCHEDULED on n1",
        "work: sub1 SCHEDULED on n2",
    ]
    assert "work: RUNNING" in lines
    assert lines[-3:] == [
        "work: TERMINATING (COMMAND_FAILED)",
        "work: sub1 TERMINATED on n2, exit code 143",
        "work: TERMINATED FAILED, exit code 3 (COMMAND_FAILED)",
    ]
    assert len(lines) == len(journal.events)
    assert view is not None
    assert summary(view, 1.25) == "work: TERMINATED FAILED, exit code 3 (COMMAND_FAILED) after 1.2 s"


def test_many_kernels_are_counted() -> None:
    before, after = session(size=100), session(size=100)
    for kernel in after.kernels[:40]:
        kernel.state = pb.KERNEL_STATE_RUNNING
    assert changes(before, after) == ["work: 40 RUNNING, 60 PENDING"]
    assert kernel_counts(before) == "100 PENDING"
    assert changes(after, after) == []


def test_conditions_are_printed_once() -> None:
    before, after = session(), session()
    after.conditions.add(type="AGENT_LOST", message="n2 is \x1blost")
    assert changes(before, after) == [r"work: AGENT_LOST: n2 is \x1blost"]
    assert changes(after, after) == []


def test_what_others_wrote_is_made_safe_in_lines() -> None:
    view = session()
    view.spec.name, view.reason, view.message = "a\x1b[2J", "R\n", "m\r"
    view.state = pb.SESSION_STATE_TERMINATED
    for text in (changes(None, view)[0], outcome(view), summary(view, 1)):
        assert text.isprintable()


def test_event_lines() -> None:
    journal = Journal()
    journal.whole_life(exit_code=0)
    lines = [event_line(event) for event in journal.events]
    assert lines[0] == "1  0b9b4f0e  work: PENDING"
    assert lines[2] == "3  0b9b4f0e  main1 SCHEDULED on n1"
    assert lines[-1] == f"{len(lines)}  0b9b4f0e  TERMINATED, exit code 0 (COMMAND_ENDED)"
    entered = pb.KernelAccessed(method=pb.ACCESS_METHOD_ATTACH, hostname="sub1", user="a\x1bda")
    assert event_line(pb.SessionEvent(revision=3, session_id=ID, kernel_accessed=entered)) == (
        r"3  0b9b4f0e  a\x1bda enters sub1: attach"
    )
    by_port = pb.KernelAccessed(method=pb.ACCESS_METHOD_PORT, hostname="main1", user="ada", port=7001)
    line = event_line(pb.SessionEvent(revision=4, session_id=ID, kernel_accessed=by_port))
    assert line == "4  0b9b4f0e  ada enters main1: port 7001"


def test_output_of_several_kernels_comes_in_whole_lines() -> None:
    lines = HostLines()
    assert lines.take(LogChunk("main1", 0, b"one\ntw")) == b"main1  | one\n"
    assert lines.take(LogChunk("sub1", 0, b"other\n")) == b"sub1   | other\n"
    assert lines.take(LogChunk("main1", 6, b"o\n\nrest")) == b"main1  | two\nmain1  | \n"
    assert lines.rest() == b"main1  | rest\n"
    assert lines.rest() == b""


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        # As it grows, over itself.
        ([b"1 %\r", b"2 %\r", b"done\n"], [b"m | 1 %", b"\rm | 1 %\rm | 2 %", b"\rm | 2 %\rm | done\n"]),
        ([b"\r1 %", b"\r2 %"], [b"m | \rm | 1 %", b"\rm | 1 %\rm | 2 %"]),
        ([b"\r1", b"0 %\n"], [b"m | \rm | 1", b"\rm | 10 %\n"]),
        # One that does not is kept until it ends; so is one that is no progress for its length.
        ([b"1", b"2\n"], [b"", b"m | 12\n"]),
        ([b"a\r" + b"x" * 5000, b"\n"], [b"", b"m | a\rm | " + b"x" * 5000 + b"\n"]),
        # Line ends of DOS are no progress.
        ([b"one\r\ntwo\r\n"], [b"m | one\nm | two\n"]),
        ([b"one\r", b"\ntwo"], [b"m | one", b"\rm | one\n"]),
    ],
)
def test_a_line_that_writes_over_itself_is_shown_as_it_grows(pieces: list[bytes], shown: list[bytes]) -> None:
    lines = HostLines()
    written = [lines.take(LogChunk("m", 0, piece)).replace(b"m      |", b"m |") for piece in pieces]
    assert written == shown


def test_another_kernels_line_does_not_write_over_progress() -> None:
    lines = HostLines()
    assert lines.take(LogChunk("main1", 0, b"1 %\r")) == b"main1  | 1 %"
    assert lines.take(LogChunk("sub1", 0, b"hello\n")) == b"\nsub1   | hello\n"
    assert lines.take(LogChunk("main1", 4, b"2 %\r")) == b"main1  | 1 %\rmain1  | 2 %"
    assert lines.take(LogChunk("sub1", 6, b"5 %\r")) == b"\nsub1   | 5 %"
    assert lines.rest() == b"\nmain1  | 2 %\nsub1   | 5 %\n"


def test_a_long_line_is_copied_once() -> None:
    """Each piece is copied as often as it is joined: never before its line ends."""
    lines = HostLines()
    pieces = [b"x" * 1000 for _ in range(1000)]
    tracemalloc.start()
    try:
        assert not any(lines.take(LogChunk("m", 0, piece)) for piece in pieces)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 500_000
    assert len(lines.rest()) == 1_000_000 + len(b"m      | \n")


def test_option_values() -> None:
    command = click.Command("x", params=[click.Option(["--y"])])
    context, parameter = click.Context(command), command.params[0]
    assert [options.span(context, parameter, text) for text in ("90", "250ms", "1.5m", "2h", "1d", None)] == [
        90.0,
        0.25,
        90.0,
        7200.0,
        86400.0,
        None,
    ]
    assert options.slots(context, parameter, ["cpu=2,mem=1g", "cuda.device=1"]) == {
        "cpu": "2",
        "mem": "1g",
        "cuda.device": "1",
    }
    assert options.pairs(context, parameter, ["A=b=c", "D="]) == {"A": "b=c", "D": ""}
    assert options.words(context, parameter, "sh -c 'a b'") == ["sh", "-c", "a b"]
    for convert, wrong in ((options.span, "soon"), (options.words, "'open")):
        with pytest.raises(click.BadParameter):
            convert(context, parameter, wrong)
    for value in (["cpu"], ["=2"]):
        with pytest.raises(click.BadParameter):
            options.slots(context, parameter, value)


def test_request_ids_are_printed_on_demand_and_with_faults(capsys: pytest.CaptureFixture[str]) -> None:
    refused = errors.NotFound("no such session", reason="NOT_FOUND", request_id="abc-1")
    for arguments, error, lines in (
        (["help"], refused, ["retinue: no such session [NOT_FOUND]"]),
        (["-v", "help"], refused, ["retinue: no such session [NOT_FOUND]", "  request abc-1"]),
        (["help"], errors.NotFound("no such agent", metadata={"id": "x"}), ["retinue: no such agent: x"]),
        (
            ["help"],
            errors.NotFound("no such port: there is web", metadata={"id": "x"}),
            ["retinue: no such port: there is web"],
        ),
        (["help"], errors.ServerFault("a fault", request_id="abc-2"), ["retinue: a fault", "  request abc-2"]),
    ):
        run(arguments)
        print_error(error)
        assert capsys.readouterr().err.splitlines() == lines


def test_each_mistake_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    name, slot = errors.FieldViolation("spec.name", "is required"), errors.FieldViolation("spec.slots", "are none")
    quota = errors.FieldViolation("users/ann", "2 of 2 sessions of user ann are placed")
    for error, lines in (
        (
            errors.InvalidRequest("spec.name: is required", reason="INVALID_FIELD", violations=(name,)),
            ["retinue: spec.name: is required [INVALID_FIELD]"],
        ),
        (
            errors.InvalidRequest("spec.name: is required; spec.slots: are none", violations=(name, slot)),
            ["retinue: 2 fields are wrong", "  spec.name: is required", "  spec.slots: are none"],
        ),
        (errors.ResourceExhausted(quota.description, violations=(quota,)), [f"retinue: {quota.description}"]),
        # A message that says less than the fields.
        (errors.InvalidRequest("invalid", violations=(name,)), ["retinue: invalid", "  spec.name: is required"]),
    ):
        print_error(error)
        assert capsys.readouterr().err.splitlines() == lines
