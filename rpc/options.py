"""The group of commands of a daemon, and the options that the daemons of nodes share."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.rpc import logs
from retinue.rpc.core.addresses import Network, parse_networks
from retinue.rpc.core.names import NAME_RULE, is_name
from retinue.rpc.version import LazyVersion

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_SENTENCE = 1000
_ARGUMENTS = "retinue.arguments"

metrics = click.option(
    "--metrics",
    default="",
    metavar="HOST:PORT",
    help="Serves metrics to Prometheus there, at /metrics, without TLS and credentials.",
)


failpoints = click.option(
    "--failpoints",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    hidden=True,
    help="Steps fail as files there say; only with --dev.",
)


def check_failpoints(directory: Path | None, *, development: bool) -> None:
    """Raises UsageError for failpoints outside of development mode."""
    if directory is not None and not development:
        raise click.UsageError(
            "--failpoints is for development only, as the process fails on purpose where files of that directory say so: "
            "leave it out, or add --dev"
        )


class Commands(click.Group):
    """A group whose help has the whole first sentence of each command."""

    group_class = type

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes names and sentences, in lines of their own where they are long."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_LONGEST_SENTENCE))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class Daemon(Commands):
    """The commands of a daemon. What keeps one that serves from starting is a line of its log."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the arguments, and keeps them for the case that they are wrong."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. Raises what it raises, in the format of the log where that is for machines."""
        try:
            return super().invoke(ctx)
        except logs.DaemonError:
            raise
        except click.ClickException as error:
            if self._log_format(ctx) != logs.JSON:
                raise
            logs.configure_logging(logs.JSON, "info")
            refusal = logs.SettingsError if error.exit_code == click.UsageError.exit_code else logs.DaemonError
            raise refusal(error.format_message()) from error

    def _log_format(self, ctx: click.Context) -> str:
        """Returns the format that was asked for, also where options were not read so far; empty for commands that do
        not serve.
        """
        arguments: list[str] = ctx.meta[_ARGUMENTS]
        command = self.get_command(ctx, next((text for text in arguments if not text.startswith("-")), ""))
        if command is None or all(parameter.name != "log_format" for parameter in command.params):
            return ""
        if logs.FORMAT in ctx.meta:
            return str(ctx.meta[logs.FORMAT])
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
            name, equals, value = argument.partition("=")
            if name == "--log-format":
                return value if equals else following
        return os.environ.get(f"{command.context_settings.get('auto_envvar_prefix', '')}_LOG_FORMAT", "")


def daemon(name: str) -> Callable[[Callable[[], None]], click.Group]:
    """Makes a group of commands of a program: `-h` works for each of them, and `--version` for all. Its commands import
    gRPC when they run.
    """

    def decorate(function: Callable[[], None]) -> click.Group:
        @functools.wraps(function)
        def begin() -> None:
            # gRPC reads it when it is loaded. What its core prints is no line of our log, and is said by the call that
            # failed as well, but for oddities of callers.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
            function()

        group = click.group(cls=Daemon, context_settings={"help_option_names": ["-h", "--help"]})(begin)
        return click.version_option(LazyVersion(), prog_name=name, message="%(prog)s %(version)s")(group)

    return decorate


def managers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Returns the addresses of managers; a usage error for anything else."""
    from retinue.rpc.enrollment.managers import parse_managers  # noqa: PLC0415  # kept out of `--help`

    try:
        return parse_managers(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Returns a name; a usage error for anything else."""
    if not is_name(value):
        raise click.BadParameter(f"must be {NAME_RULE}")
    return value


def secret(value: str | None) -> str:
    """Returns a secret, or the content of the file of that name. Raises ClickException when it cannot be read."""
    if not value:
        return ""
    path = Path(value)
    try:
        return path.read_text().strip() if path.is_file() else value
    except OSError as error:
        raise click.ClickException(f"cannot read {value}: {error.strerror}") from error


def networks(option: str, text: str) -> tuple[Network, ...]:
    """Returns the networks that an option names, with commas between them. Raises UsageError."""
    try:
        return parse_networks(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error
