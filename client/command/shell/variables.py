"""Environment variables on the command line and in files, as `docker run` takes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from retinue.client.command.shell.text_files import read_file
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_Command = TypeVar("_Command", bound="Callable[..., Any]")
_META = "retinue.env-file"


def env_options(command: _Command) -> _Command:
    """Adds `-e` and `--env-file` to a command, which gets both as `env`."""
    command = click.option(
        "--env-file",
        multiple=True,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read,
        help="Read variables from a file, one NAME=VALUE or NAME a line; -e overrides them.",
    )(command)
    return click.option(
        "-e",
        "--env",
        multiple=True,
        callback=_typed,
        metavar="NAME[=VALUE]",
        help="Set a variable; without =VALUE, copy it from here.",
    )(command)


def parse_env_file(text: str, source: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a file: a line `NAME=VALUE`, of which all after the first = is the value, quotes
    included, or `NAME`, which is taken from an environment if it is there; `#` begins a line that is a comment.
    Raises UsageError, with the line.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.lstrip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not name or (name.split() != [name] if equals else name.split() != [name.rstrip()]):
            hint = " (without `export`)" if name.startswith("export ") else ""
            raise UsageError(f"{source}:{number}: write NAME=VALUE, with no space in the name{hint}")
        if equals:
            found[name] = value
        elif name.rstrip() in environment:
            found[name.rstrip()] = environment[name.rstrip()]
    return found


def _read(context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> None:
    found: dict[str, str] = {}
    for value in values:
        try:
            source, text = read_file(value)
            found |= parse_env_file(text, source, os.environ)
        except UsageError as error:
            raise click.BadParameter(str(error), param=parameter) from error
    context.meta[_META] = found


def _typed(context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    found = dict(context.meta.get(_META, {}))
    for value in values:
        name, equals, content = value.partition("=")
        if not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", param=parameter)
        if equals:
            found[name] = content
        elif name in os.environ:
            found[name] = os.environ[name]
    return found
