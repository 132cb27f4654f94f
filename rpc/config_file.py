"""Reads the options of a daemon from a file in TOML: the names of the command line without their dashes.

Arguments win over variables, variables over the file, and the file over defaults.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from retinue.rpc import logs

if TYPE_CHECKING:
    from collections.abc import Callable

_LIST_SEPARATOR = ","
_NEAR = 3
_JOIN_TOKEN_PREFIX = "rtj_"  # noqa: S105  # how secrets begin, none itself
_HIDDEN = "********"
_ARGUMENTS = "retinue.rpc.config_file.arguments"
_SOURCES = {
    ParameterSource.COMMANDLINE: "argument",
    ParameterSource.ENVIRONMENT: "variable",
    ParameterSource.DEFAULT_MAP: "file",
}
_PASSWORD = re.compile(r"(?<=:)[^:@/]+(?=@)")

_Value: TypeAlias = str | int | float | bool | list[str]


def option(envvar: str, *, partial: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds `--config FILE` to a command. With `partial`, keys of other commands of the program are left to those."""

    def read(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
        if path is not None:
            context.default_map = _load(path, context, partial=partial)

    return click.option(
        "--config",
        envvar=envvar,
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        callback=read,
        is_eager=True,
        expose_value=False,
        help="File of options in TOML, named as here without dashes; arguments and variables win over it.",
    )


class CheckCommand(click.Command):
    """A command that keeps what it was given as it was given, for `check`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments as every command does."""
        with contextlib.suppress(click.UsageError):
            # What is wrong with them is said below.
            ctx.meta[_ARGUMENTS] = self.make_parser(ctx).parse_args(list(args))[0]
        return super().parse_args(ctx, args)


def check(context: click.Context) -> None:
    """Prints what a command was given other than defaults, and from where: in TOML, as a file could hold it, but for
    secrets. The command is a CheckCommand. Raises ClickException on files that cannot be read.
    """
    wrong = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        source = context.get_parameter_source(parameter.name or "") or ParameterSource.DEFAULT
        if source not in _SOURCES or not parameter.expose_value:
            continue
        name = _name(parameter)
        click.echo(f"{name} = {_shown(name, _given(context, parameter, source))}  # {_SOURCES[source]}")
        if isinstance(value, Path) and isinstance(parameter.type, click.Path) and not parameter.type.dir_okay:
            try:
                with value.open("rb"):
                    pass
            except OSError as error:
                wrong.append(f"{name}: cannot read {value}: {error.strerror}")
    if wrong:
        raise click.ClickException("\n".join(wrong))
    click.echo("# the configuration is good")


def _load(path: Path, context: click.Context, *, partial: bool) -> dict[str, _Value]:
    """Returns values by names of parameters. Raises ClickException with everything that is wrong in the file."""
    command = context.command
    try:
        with path.open("rb") as file:
            readable = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o007
            content = tomllib.load(file)
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise click.ClickException(f"{path}: {error}") from error
    known = {_name(parameter): parameter for parameter in command.params if parameter.expose_value}
    values: dict[str, _Value] = {}
    wrong = []
    for name, value in content.items():
        parameter = known.get(name)
        if readable and _is_secret(name, value):
            wrong.append(f"{name} holds a secret, and every user can read the file: chmod 640 {path}")
        elif parameter is None:
            wrong += [] if partial else [f"unknown key {name}{_near(name, known)}"]
        else:
            try:
                values[parameter.name or name] = _value(parameter, value)
            except ValueError as error:
                wrong.append(f"{name} {error}")
    if wrong:
        context.meta.setdefault(logs.FORMAT, values.get("log_format"))
        raise click.ClickException("\n".join(f"{path}: {line}" for line in wrong))
    return values


def _value(parameter: click.Parameter, value: object) -> _Value:
    """Returns a value as an option takes it. Raises ValueError with what the key must be."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value
    if isinstance(parameter.type, click.types.FloatParamType | click.types.IntParamType):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("must be a number")
        return value
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return value if parameter.multiple else _LIST_SEPARATOR.join(value)
    if not isinstance(value, str):
        raise ValueError("must be text in quotes, or a list of texts")
    return [value] if parameter.multiple else value


def _name(parameter: click.Parameter) -> str:
    """Returns the key of a parameter: its long option without dashes."""
    return next((name for name in parameter.opts if name.startswith("--")), parameter.name or "").lstrip("-")


def _near(name: str, known: dict[str, click.Parameter]) -> str:
    shown = [key for key, parameter in known.items() if not getattr(parameter, "hidden", False)]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), shown, _NEAR)
    return f": did you mean {' or '.join(near)}?" if near else ""


def _is_secret(name: str, value: object) -> bool:
    """Returns whether a value is a secret itself, and not the name of a file that holds it."""
    if not isinstance(value, str):
        return False
    if name == "join-token":
        return value.startswith(_JOIN_TOKEN_PREFIX)
    try:
        return urlsplit(value).password is not None
    except ValueError:
        return False


def _given(context: click.Context, parameter: click.Parameter, source: ParameterSource) -> _Value:
    """Returns a value as it was given; numbers and switches as they were understood."""
    name = parameter.name or ""
    value = context.params.get(name)
    if isinstance(value, bool | int | float):
        return value
    if source is ParameterSource.DEFAULT_MAP:
        given = (context.default_map or {}).get(name)
    elif source is ParameterSource.ENVIRONMENT:
        given = parameter.value_from_envvar(context)
    else:
        given = context.meta.get(_ARGUMENTS, {}).get(name, value)
    return [str(part) for part in given] if isinstance(given, list | tuple) else str(given)


def _shown(name: str, value: _Value) -> str:
    """Returns a value in TOML, without secrets."""
    if isinstance(value, str):
        hidden = _HIDDEN if name == "join-token" and _is_secret(name, value) else _PASSWORD.sub(_HIDDEN, value)
        # A text of JSON is one of TOML, but for characters beyond the first plane, which JSON writes as two.
        return json.dumps(hidden, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
