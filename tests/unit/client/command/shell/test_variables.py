"""Variables on the command line and in files are read as `docker run` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from retinue.client.command.shell.text_files import decode
from retinue.client.command.shell.variables import env_options, parse_env_file
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

HERE = {"HOME": "/home/me", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {}),
        ("A=1\nB=2\n", {"A": "1", "B": "2"}),
        ("# comment\n\n  # another\n  A=1", {"A": "1"}),
        ("A=1 # no comment", {"A": "1 # no comment"}),
        ("A=\"quoted\"\nB='x'", {"A": '"quoted"', "B": "'x'"}),
        ("A=x=y=z", {"A": "x=y=z"}),
        ("A=", {"A": ""}),
        ("A= spaced ", {"A": " spaced "}),
        ("A=$HOME", {"A": "$HOME"}),
        ("HOME\nMISSING\nEMPTY", {"HOME": "/home/me", "EMPTY": ""}),
        ("HOME ", {"HOME": "/home/me"}),
        ("discovery.type=single-node", {"discovery.type": "single-node"}),
        ("GRÖSSE=größer", {"GRÖSSE": "größer"}),
        ("A=1\nA=2", {"A": "2"}),
    ],
)
def test_a_file_of_variables(text: str, variables: dict[str, str]) -> None:
    assert parse_env_file(text, "f", HERE) == variables


@pytest.mark.parametrize(("text", "line"), [("A=1\n=2", 2), ("export A=1", 1), ("A B=1", 1), ("A =1", 1), ("A B", 1)])
def test_what_is_no_file_of_variables(text: str, line: int) -> None:
    with pytest.raises(UsageError, match=rf"^f:{line}: write NAME=VALUE"):
        parse_env_file(text, "f", HERE)


def test_options_count_before_files_and_names_are_those_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes("A=1\r\nB=1\r\nC=1\r\n".encode("utf-16"))
    other.write_bytes(b"\xef\xbb\xbfB=2\nC=2")
    monkeypatch.setenv("HERE", "it is")
    monkeypatch.delenv("GONE", raising=False)
    found: list[dict[str, Any]] = []

    @click.command()
    @env_options
    def command(**given: Any) -> None:
        found.append(given)

    typed = ["-e", "C=3", "-e", "HERE", "-e", "GONE", "-e", "D=", "--env-file", str(one), "--env-file", str(other)]
    result = CliRunner().invoke(command, typed)
    assert result.exit_code == 0, result.output
    assert found == [{"env": {"A": "1", "B": "2", "C": "3", "HERE": "it is", "D": ""}}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_texts_of_windows_are_read(encoding: str) -> None:
    mark = "\ufeff" if encoding.endswith("e") else ""
    assert decode(f"{mark}#!/bin/sh\r\necho größe\r\n".encode(encoding)) == "#!/bin/sh\necho größe\n"


def test_a_carriage_return_within_a_line_stays() -> None:
    assert decode(b"printf 'a\rb'\n") == "printf 'a\rb'\n"
