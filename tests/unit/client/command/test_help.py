"""The pages of help: they fit a terminal, are in imperatives, and lead from wrong names to right ones."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from retinue.client.command.application import cli, run
from tests.support.eventually import NEVER


def _commands(group: click.Group) -> list[click.Command]:
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found += [command, *(_commands(command) if isinstance(command, click.Group) else [])]
    return found


def test_the_first_page_fits_a_terminal_and_names_every_command() -> None:
    page = CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["--help"], terminal_width=80).output.splitlines()
    assert len(page) <= 24
    assert max(map(len, page)) <= 80
    words = " ".join(page).split()
    assert all(name in words for name in cli.list_commands(click.Context(cli)))


def test_each_command_is_described_by_an_imperative() -> None:
    wrong = [command.name for command in _commands(cli) if (command.help or "").split()[0].rstrip(",").endswith("s")]
    assert not wrong


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        *(("ps", "ls"), ("show", "get"), ("events", "history"), ("delete", "rm"), ("nodes", "agents")),
        *(("agent", "agents"), ("endpoints", "endpoint"), ("token", "tokens"), ("group", "groups"), ("apps", "app")),
    ],
)
def test_names_of_other_systems_are_understood(typed: str, command: str) -> None:
    assert cli.get_command(click.Context(cli), typed) is cli.get_command(click.Context(cli), command)


def test_a_wrong_name_leads_to_near_ones() -> None:
    near = CliRunner().invoke(cli, ["explian"])
    assert (near.exit_code, "Did you mean explain?" in near.output) == (2, True)
    far = CliRunner().invoke(cli, ["frobnicate"])
    assert (far.exit_code, "See `retinue help`" in far.output) == (2, True)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["sessions", "ls"], "Did you mean `retinue ls`?"),
        (["cluster"], "Did you mean `retinue agents ls` or `retinue groups ls`?"),
        (["lss"], "Did you mean ls?"),
        (["waitt"], "Did you mean wait?"),
        (["zebra"], "See `retinue help`."),
    ],
)
def test_what_is_no_command_leads_to_one(typed: list[str], hint: str) -> None:
    ended = CliRunner().invoke(cli, typed)
    assert (ended.exit_code, hint in ended.output) == (2, True), ended.output


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["ls", "--label", "a=b"], "Did you mean --selector?"),
        (["run", "--labels", "a=b", "--", "true"], "Did you mean --label?"),
        (["run", "--gpus", "1", "--", "true"], "Did you mean --slots?"),
        (["run", "-v", "/srv:/data", "--", "true"], "Did you mean --mount?"),
        (["run", "--gres", "gpu:1", "--", "true"], "Did you mean --slots?"),
        (["run", "--shm-size", "1g", "--", "true"], "Did you mean --shared-memory?"),
        (["run", "--rm", "--", "true"], "Leave it out: nothing of a session stays on its node"),
        (["run", "--entrypoint", "sh", "--", "true"], "-- COMMAND"),
        (["run", "--publish", "8000", "--", "true"], "Did you mean --port?"),
        (["run", "--nme", "a", "--", "true"], "Did you mean --name?"),
        (["run", "--slot", "cpu=1", "--", "true"], "--slots"),
    ],
)
def test_what_is_no_option_leads_to_one(typed: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed) == 2
    assert hint in capsys.readouterr().err.replace("'", "")


def test_an_option_like_no_other_leads_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--zebra"]) == 2
    assert "mean" not in capsys.readouterr().err


def test_help_describes_all_commands_or_one() -> None:
    everything = CliRunner().invoke(cli, ["help"]).output
    assert "Start a session that runs COMMAND" in everything
    assert "RETINUE_EXIT_ERROR" in everything
    one = CliRunner().invoke(cli, ["help", "tokens", "create"]).output
    assert one.startswith("Usage: ")
    assert "tokens create" in one
    assert CliRunner().invoke(cli, ["help", "tokens", "nope"]).exit_code == 2


def test_help_of_a_group_cuts_no_sentence() -> None:
    for words in (["agents"], ["code"], ["endpoint"], ["endpoint", "token"], ["template"]):
        page = CliRunner().invoke(cli, [*words, "-h"], terminal_width=80).output
        listed = page.partition("\nCommands:\n")[2].splitlines()
        assert len(listed) > 2
        assert [line for line in listed if line.endswith("...") or len(line) > 80] == []


def test_the_version_needs_no_server() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output.startswith("retinue 0.")


def test_the_first_page_loads_neither_grpc_nor_messages() -> None:
    program = """
import sys
from retinue.client.command.application import run
run(["--help"])
others = ("grpc", "google.protobuf", "yaml", "rich", "asyncio", "importlib.metadata", "hashlib")
print([name for name in others if name in sys.modules], file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=NEVER)
    assert ended.stderr == "[]\n"


@pytest.mark.parametrize("command", ["ls", "get", "rm", "logs", "run", "exec", "squeue"])
def test_the_help_of_a_command_loads_no_grpc(command: str) -> None:
    program = f"""
import sys
from retinue.client.command.application import run
run(["{command}", "--help"])
print([name for name in ("grpc", "importlib.metadata", "zipfile") if name in sys.modules], file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=NEVER)
    assert ended.stderr == "[]\n"


def test_a_list_loads_nothing_that_only_others_need() -> None:
    program = """
import asyncio, sys
from retinue.client.client import Client
from retinue.client.command.sessions import listing
async def made():
    async with Client.connect("127.0.0.1:1", token="x") as client:
        client.sessions.list()
asyncio.run(made())
others = (
    "html", "zipfile", "importlib.metadata", "yaml", "google.protobuf.json_format", "rich.console", "rich.live", "tenacity",
    "retinue.client.endpoints", "retinue.client.admin.fleet", "retinue.client.kernel.files",
)
print([name for name in others if name in sys.modules], file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=NEVER)
    assert ended.stderr == "[]\n"
