"""The program: its commands, its global options, and how errors end it."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from retinue.client.command.connection import Connection
from retinue.client.command.exit_codes import ExitCode, of_error
from retinue.client.command.print_error import print_error
from retinue.client.command.text import safe
from retinue.client.errors import RetinueError

if TYPE_CHECKING:
    from collections.abc import Sequence

# The module of each command; it is imported when its command is used.
_COMMANDS = {
    "run": "run",
    "apply": "apply",
    "template": "templates",
    "ls": "sessions",
    "get": "sessions",
    "explain": "sessions",
    "extend": "idle",
    "graph": "graph",
    "rm": "sessions",
    "watch": "following",
    "wait": "following",
    "logs": "logs",
    "exec": "exec",
    "code": "code",
    "port-forward": "port_forward",
    "open": "open",
    "cp": "files",
    "files": "files",
    "app": "app",
    "top": "top",
    "agents": "agents",
    "groups": "groups",
    "shares": "groups",
    "projects": "accounts",
    "users": "accounts",
    "tokens": "accounts",
    "quotas": "quotas",
    "idle-overrides": "idle",
    "admin": "admin",
    "contexts": "contexts",
    "dev": "dev",
    "doctor": "doctor",
    "completion": "about",
    "version": "about",
}


class _Commands(click.Group):
    """A group that imports its commands when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns all names, in the order in which they are of use."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of that name, or None."""
        del ctx
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = getattr(
            importlib.import_module(f"retinue.client.command.{module}"), f"{cmd_name.replace('-', '_')}_command"
        )
        assert isinstance(found, click.Command)  # noqa: S101  # the table above is ours
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--context", help="Use this context of contexts.yaml.  [env: RETINUE_CONTEXT]")
@click.option(
    "--endpoint",
    metavar="HOST:PORT[,...]",
    help="The manager, or several of which one is used.  [env: RETINUE_ENDPOINT]",
)
@click.option("--token", help="Bearer token; better in the environment or a context.  [env: RETINUE_TOKEN]")
@click.option("--ca", metavar="FILE", help="PEM of the manager's CA.  [env: RETINUE_CA]")
@click.option("--no-color", is_flag=True, help="Plain text; also with NO_COLOR in the environment.")
@click.pass_context
def cli(
    context: click.Context, /, *, endpoint: str | None, token: str | None, ca: str | None, no_color: bool, **named: Any
) -> None:
    """Starts compute sessions and follows them.

    Exit codes: 0 ok, 1 the call failed, 2 usage, 3 not found, 4 denied, 5 wait timed out, 6 quota or unschedulable,
    7 unavailable; run, watch, wait and exec end with the session's own code. RETINUE_EXIT_ERROR=N puts N in place of 1 and
    3 to 7.
    """
    context.obj = Connection(named["context"], endpoint, token, ca)
    if no_color or os.environ.get("NO_COLOR"):
        os.environ["NO_COLOR"] = "1"
        context.color = False


def main() -> None:
    """Runs the command line and ends the process: the entry point."""
    _open_missing_streams()
    sys.exit(run(sys.argv[1:]))


def _open_missing_streams() -> None:
    """Opens the null device for each missing standard stream: no file or connection gets its number, and it reads as empty."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def _drop_output() -> None:
    """Drops output that is not written yet: the interpreter must not try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        code = cli.main(args=list(arguments), prog_name="retinue", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it.
        _drop_output()
        return ExitCode.FAILURE
    except RetinueError as error:
        print_error(error)
        return of_error(error)
    except OSError as error:
        # Of what commands do not answer for themselves: output that cannot be written.
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"retinue: {safe(f'{place}{error.strerror or error}')}", err=True)
        _drop_output()
        return ExitCode.FAILURE
    return code if isinstance(code, int) else ExitCode.OK
