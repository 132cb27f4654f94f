"""What pages say can be typed or read is there: commands with their options, and files of the project."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click

import retinue.agent.main
import retinue.manager.main
import retinue.router.main
from docs.generator import ROOT
from retinue.client.command.application import cli
from tests.unit.docs.project_files import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4}\S.*$", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:manager|agent|client|router|devtools|protos|tests|docs|scripts|examples|demo)/[\w/.-]*\w/?")
_MODULE = re.compile(r"\w+\.py")
_CALL = re.compile(r".*(?:^|[\s/])(retinue(?:-manager|-agent|-router)?)(?=\s+[a-z]|\s*$)(.*)")
_PROGRAMS = {
    "retinue": cli,
    "retinue-manager": retinue.manager.main.main,
    "retinue-agent": retinue.agent.main.main,
    "retinue-router": retinue.router.main.main,
}
# What is said of the past may be gone.
_PAST = {"CHANGELOG.md"}


def _pages() -> Iterator[tuple[str, str]]:
    for name in listed("*.md"):
        if name not in _PAST and not name.startswith("docs/reference/"):
            yield name, (ROOT / name).read_text()


def _lines(text: str) -> Iterator[str]:
    """What looks like a command: lines of blocks, and code in sentences."""
    for block in _FENCE.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    prose = _FENCE.sub("", text)
    yield from _INDENTED.findall(prose)
    yield from _INLINE.findall(prose)


def _wrong(line: str) -> str:
    """What is wrong with a line of shell that calls a program of ours; empty for nothing, and for all other lines."""
    called = _CALL.fullmatch(re.split(r"\s[|&>#]\s?|;", line)[0])
    # The namespace of kubectl may be called so.
    if called is None or line.lstrip().startswith("kubectl "):
        return ""
    program = _PROGRAMS[called[1]]
    try:
        words = shlex.split(called[2])
    except ValueError:
        words = called[2].split()
    command: click.Command = program
    for word in words:
        if word == "--":
            break
        if word.startswith("-"):
            name = word.partition("=")[0]
            # A group of commands may have one that is meant when none is named.
            meant = command.commands.values() if isinstance(command, click.Group) and command is not program else ()
            known = {option for made in (program, command, *meant) for option in _options(made)}
            short = {f"-{letter}" for letter in name[1:]} if not name.startswith("--") else {name}
            if name not in known and not short <= known:
                return f"{line.strip()}: no {name}"
        elif isinstance(command, click.Group) and (found := command.get_command(click.Context(command), word)):
            command = found
        elif command is program and re.fullmatch(r"[a-z][a-z-]*", word):
            return f"{line.strip()}: no command {word}"
    return ""


def _options(command: click.Command) -> Iterator[str]:
    # A command keeps its option of help from the first context that asks: other tests have to find all names of it.
    for made in command.get_params(click.Context(command, help_option_names=["-h", "--help"])):
        yield from (*made.opts, *made.secondary_opts)


def test_commands_are_there_with_their_options() -> None:
    lines = [(name, line) for name, text in _pages() for line in _lines(text)]
    assert sum("retinue " in line for _, line in lines) > 100
    assert [f"{name}: {wrong}" for name, line in lines if (wrong := _wrong(line))] == []


def test_files_are_there() -> None:
    codes = [(name, code) for name, text in _pages() for code in _INLINE.findall(text)]
    paths = [(name, path) for name, code in codes for path in _PATH.findall(code)]
    modules = {name.rpartition("/")[2] for name in listed("*.py")}
    bare = [(name, code) for name, code in codes if _MODULE.fullmatch(code)]
    assert min(len(paths), len(bare)) > 20
    assert [f"{name}: {path}" for name, path in paths if not (ROOT / path).exists()] == []
    assert [f"{name}: {code}" for name, code in bare if code not in modules] == []
