"""Columns of the caller's choice, and tables that fit a terminal."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from retinue.client.command.shell.selecting import selected, selector_option
from retinue.client.command.show.columns import parse_columns, parse_path
from retinue.client.command.show.output import fitted, list_output_option, table
from retinue.client.errors import UsageError
from retinue.manager.v1 import session_pb2 as pb


def session() -> pb.Session:
    made = pb.Session(id="1", state=pb.SESSION_STATE_RUNNING)
    made.spec.name, made.spec.labels["a.b"], made.spec.labels["team"] = "plot", "x", "ml"
    made.create_time.FromSeconds(1)
    made.kernels.add(hostname="main1", agent="n1", slots={"cpu": "1"})
    made.kernels.add(hostname="sub1", agent="n2")
    return made


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".spec.name", "plot"),
        ("spec.name", "plot"),
        (".state", "SESSION_STATE_RUNNING"),
        (".createTime", "1970-01-01T00:00:01Z"),
        (".create_time", "1970-01-01T00:00:01Z"),
        (".spec.labels.team", "ml"),
        (".spec.labels['a.b']", "x"),
        (".spec.labels", "a.b=x team=ml"),
        (".spec.labels.none", "-"),
        (".kernels[1].agent", "n2"),
        (".kernels[7].agent", "-"),
        (".kernels[*].agent", "n1,n2"),
        (".kernels.hostname", "main1,sub1"),
        (".kernels[0].slots.cpu", "1"),
        (".end_time", "-"),
        (".exit_code", "-"),
        (".retries", "0"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert parse_path(path, pb.Session.DESCRIPTOR).text(session()) == expected


@pytest.mark.parametrize("path", ["", ".", "..", ".spec.", ".spec.nam", ".state.x", ".spec[0]", ".id[0]", "spec name"])
def test_paths_that_lead_nowhere_are_refused(path: str) -> None:
    with pytest.raises(UsageError):
        parse_path(path, pb.Session.DESCRIPTOR)


def test_a_wrong_field_leads_to_a_near_one() -> None:
    with pytest.raises(UsageError, match="did you mean priority"):
        parse_path(".spec.prioriti", pb.Session.DESCRIPTOR)


def test_columns() -> None:
    columns = parse_columns("NAME:.spec.name,TEAM:.spec.labels.team", pb.Session.DESCRIPTOR)
    assert [(title, path.text(session())) for title, path in columns] == [("NAME", "plot"), ("TEAM", "ml")]
    for wrong in ("", "NAME", ":.spec.name", "NAME:.nope"):
        with pytest.raises(UsageError):
            parse_columns(wrong, pb.Session.DESCRIPTOR)


def test_sorting_is_by_size_and_what_is_not_set_comes_last() -> None:
    old, new, none = session(), session(), pb.Session()
    new.create_time.FromSeconds(10)
    path = parse_path(".create_time", pb.Session.DESCRIPTOR)
    assert sorted([none, new, old], key=path.key) == [old, new, none]
    high, low = session(), session()
    high.spec.priority, low.spec.priority = 100, 9
    assert sorted([high, low], key=parse_path(".spec.priority", pb.Session.DESCRIPTOR).key) == [low, high]


def test_a_table_fits_a_terminal() -> None:
    titles = ["ID", "NAME", "RESULT", "OWNER", "MESSAGE"]
    rows = [["12345678", "a" * 30, "-", "ada", "b" * 50], ["87654321", "c", "-", "bob", "d"]]
    shown, cut = fitted(titles, rows, [0, 0, 0, 1, 0], 50)
    assert shown == ["ID", "NAME", "MESSAGE"]
    lines = table(shown, cut, colour=False)
    assert max(map(cell_len, lines)) <= 50
    assert "…" in lines[1]
    assert cut[1] == ["87654321", "c", "d"]
    assert fitted(titles, rows, [0] * 5, 200) == (titles, rows)


def test_a_table_too_narrow_for_anything_is_left_as_it_is() -> None:
    assert fitted(["ID"], [["12345678"]], [0], 3) == (["ID"], [["12345678"]])
    assert fitted(["ID", "NAME"], [], [0, 0], 3) == (["ID", "NAME"], [])


def test_selectors() -> None:
    @click.command()
    @selector_option
    @list_output_option
    def command(selectors: list[str], output: str) -> None:
        click.echo(selected('state = "RUNNING"', selectors) + f" {output}")

    run = CliRunner().invoke
    given = run(command, ["-l", 'team=a"b', "-l", "x!=1,y==2", "-o", "jsonl"]).output
    assert given == 'state = "RUNNING" AND labels.team = "a\\"b" AND labels.x != "1" AND labels.y = "2" jsonl\n'
    assert run(command, ["-l", "team"]).exit_code == 2
    assert run(command, ["-o", "jsonpath=x"]).exit_code == 2
