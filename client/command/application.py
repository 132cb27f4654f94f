"""The program: its commands, its global options, and how errors end it."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from retinue.client.command.shell import completed_names, streams
from retinue.client.command.shell.connection import Connection
from retinue.client.command.shell.exit_codes import ExitCode, of_error
from retinue.client.command.shell.print_error import connection_in_use, print_error, verbose
from retinue.client.command.shell.printable import safe
from retinue.client.errors import RetinueError
from retinue.rpc.version import LazyVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# By section of the help, each command and its module, which is imported when the command is used.
_SECTIONS = {
    "Sessions": {
        "run": "sessions.run",
        "submit": "sessions.submit",
        "apply": "sessions.apply",
        "template": "sessions.templates",
        "ls": "sessions.listing",
        "get": "sessions.sessions",
        "describe": "sessions.history",
        "history": "sessions.history",
        "explain": "sessions.sessions",
        "graph": "sessions.graph",
        "watch": "sessions.following",
        "wait": "sessions.following",
        "logs": "sessions.logs",
        "top": "sessions.top",
        "rename": "sessions.updates",
        "priority": "sessions.updates",
        "hold": "sessions.updates",
        "release": "sessions.updates",
        "extend": "sessions.idle",
        "restart": "sessions.history",
        "rm": "sessions.sessions",
        "endpoint": "endpoints.endpoints",
    },
    "In a session": {
        "exec": "inside.exec",
        "attach": "inside.exec",
        "code": "inside.code",
        "ssh": "inside.ssh",
        "cp": "inside.files",
        "files": "inside.files",
        "sftp": "inside.sftp",
        "port-forward": "inside.port_forward",
        "ssh-config": "inside.sftp",
        "app": "inside.app",
        "open": "inside.open",
        "sftp-mount": "inside.sftp",
    },
    "Slurm": {
        "sbatch": "slurm.sbatch",
        "squeue": "slurm.squeue",
        "scancel": "slurm.scancel",
        "sacct": "slurm.sacct",
        "sinfo": "slurm.sinfo",
        "srun": "slurm.srun",
        "scontrol": "slurm.scontrol",
        "slurm-commands": "slurm.slurm_commands",
    },
    "Accounts": {
        "projects": "admin.accounts",
        "users": "admin.accounts",
        "tokens": "admin.accounts",
        "keys": "admin.keys",
        "quotas": "admin.quotas",
        "idle-overrides": "sessions.idle",
        "sacctmgr": "slurm.accounting",
        "sshare": "slurm.accounting",
    },
    "Cluster": {
        "agents": "admin.agents",
        "routers": "admin.routers",
        "groups": "admin.groups",
        "shares": "admin.groups",
        "audit": "admin.audit",
        "admin": "admin.admin",
    },
    "This machine": {
        "contexts": "machine.contexts",
        "console": "machine.console",
        "dev": "retinue.devtools.dev_command",
        "doctor": "retinue.devtools.doctor_command",
        "completion": "machine.about",
        "version": "machine.about",
        "protos": "machine.about",
        "help": "application",
    },
}
_COMMANDS = {name: module for section in _SECTIONS.values() for name, module in section.items()}
_LONGEST_SENTENCE = 1000
# Names that users of other systems type, and nouns in the other number.
_ALIASES = {
    "agent": "agents",
    "apps": "app",
    "context": "contexts",
    "group": "groups",
    "key": "keys",
    "node": "agents",
    "project": "projects",
    "quota": "quotas",
    "router": "routers",
    "share": "shares",
    "token": "tokens",
    "user": "users",
    "cancel": "rm",
    "delete": "rm",
    "endpoints": "endpoint",
    "events": "history",
    "forward": "port-forward",
    "kill": "rm",
    "list": "ls",
    "nodes": "agents",
    "ps": "ls",
    "show": "get",
    "stop": "rm",
    "templates": "template",
}
# What there is in place of what is often typed and is no command.
_INSTEAD = {
    "cluster": "`retinue agents ls` or `retinue groups ls`",
    "config": "`retinue contexts`",
    "create": "`retinue run` or `retinue apply -f FILE`",
    "info": "`retinue agents ls` or `retinue version`",
    "job": "`retinue submit SCRIPT` or `retinue ls`",
    "jobs": "`retinue ls`",
    "login": "`retinue contexts add NAME`",
    "logout": "`retinue contexts rm NAME`",
    "queue": "`retinue ls` or `retinue explain SESSION`",
    "session": "`retinue get SESSION` or `retinue ls`",
    "sessions": "`retinue ls`",
    "start": "`retinue run`",
    "status": "`retinue get SESSION` or `retinue agents ls`",
    "usage": "`retinue top` or `retinue shares`",
    "whoami": "`retinue users me`",
}
# Options that other systems have, and those here: the first that a command has.
_OPTIONS_INSTEAD = {
    "account": ("--project",),
    "cpu": ("--slots",),
    "cpus": ("--slots",),
    "cpus-per-task": ("--slots",),
    "dependency": ("--depends-on",),
    "format": ("--output",),
    "gpu": ("--slots",),
    "gpus": ("--slots",),
    "gpus-per-node": ("--slots",),
    "gres": ("--slots",),
    "job-name": ("--name",),
    "label": ("--selector",),
    "labels": ("--label", "--selector"),
    "mem": ("--slots",),
    "mem-per-cpu": ("--slots",),
    "memory": ("--slots",),
    "nodelist": ("--agent",),
    "nodes": ("--size",),
    "ntasks": ("--size",),
    "partition": ("--group",),
    "publish": ("--port",),
    "shm-size": ("--shared-memory",),
    "time": ("--time-limit",),
    "v": ("--mount",),
    "volume": ("--mount",),
}
# Options that other systems have and that nothing takes the place of, with what to do.
_OPTIONS_WITHOUT = {
    "entrypoint": "The command says what runs, program first: -- COMMAND",
    "hostname": "Kernels are called main1, sub1 and so on.",
    "rm": "Leave it out: nothing of a session stays on its node once it has ended.",
}
# Names that are less alike lead astray.
_LIKENESS = 0.7


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Returns up to three names that a misspelt one may mean."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=_LIKENESS)


def _keep_whole(command: click.Command) -> None:
    """Has the help of a group show the whole first sentence of each of its commands: click cuts what it finds itself to
    one line.
    """
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        inner.short_help = inner.get_short_help_str(_LONGEST_SENTENCE)
        _keep_whole(inner)


class _Commands(click.Group):
    """A group that imports its commands when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns all names, in the order in which they are of use."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of that name or alias, or None."""
        del ctx
        name = _ALIASES.get(cmd_name, cmd_name)
        module = _COMMANDS.get(name)
        if module is None:
            return None
        path = module if module.startswith("retinue.") else f"retinue.client.command.{module}"
        found = getattr(importlib.import_module(path), f"{name.replace('-', '_')}_command")
        assert isinstance(found, click.Command)  # noqa: S101  # the table above is ours
        _keep_whole(found)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command that is called and its arguments; usage errors name the
        commands that are nearly called so.
        """
        name = args[0]
        if name not in _COMMANDS and name not in _ALIASES and not name.startswith("-"):
            near = _INSTEAD.get(name) or " or ".join(nearest(name, [*_COMMANDS, *_ALIASES]))
            hint = f"Did you mean {near}?" if near else "See `retinue help`."
            ctx.fail(f"No such command {name!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the names of the commands by section, on a page of 24 lines;
        `retinue help` says what each of them does.
        """
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(title, " ".join(section)) for title, section in _SECTIONS.items()])


def _summaries(root: click.Context) -> str:
    """Returns a page of all commands by section, each with its first sentence, and of the exit codes."""
    formatter = root.make_formatter()
    for title, section in _SECTIONS.items():
        with formatter.section(title):
            commands = [(name, cli.get_command(root, name)) for name in section]
            formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in commands if command])
    with formatter.section("Exit codes"):
        formatter.write_text(
            "0 ok, 1 failed, 2 usage, 3 not found, 4 denied, 5 timeout, 6 quota or unschedulable, 7 unavailable; run, watch, wait and "
            "exec end with the session's own code. RETINUE_EXIT_ERROR=N puts N in place of 1 and 3 to 7."
        )
    return formatter.getvalue().strip("\n")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(LazyVersion(), prog_name="retinue", message="%(prog)s %(version)s")
@click.option(
    "--context", metavar="NAME", shell_complete=completed_names.contexts, help="Use this context ($RETINUE_CONTEXT)."
)
@click.option("--endpoint", metavar="HOST:PORT[,...]", help="Addresses of managers ($RETINUE_ENDPOINT).")
@click.option("--token", help="Bearer token; prefer $RETINUE_TOKEN.")
@click.option("--ca", metavar="FILE", help="The manager's CA, in PEM ($RETINUE_CA).")
@click.option("-v", "--verbose", "details", is_flag=True, help="Print request ids with errors.")
@click.option("--no-color", is_flag=True, help="Print no colours (also $NO_COLOR).")
@click.pass_context
def cli(
    context: click.Context,
    /,
    *,
    endpoint: str | None,
    token: str | None,
    ca: str | None,
    details: bool,
    no_color: bool,
    **named: Any,
) -> None:
    """Run compute sessions on a cluster. `retinue help` describes all commands."""
    context.obj = Connection(named["context"], endpoint, token, ca)
    connection_in_use.set(context.obj)
    verbose.set(details)
    if no_color or os.environ.get("NO_COLOR"):
        os.environ["NO_COLOR"] = "1"
        context.color = False


@click.command("help")
@click.argument("command", nargs=-1)
@click.pass_context
def help_command(context: click.Context, command: tuple[str, ...]) -> None:
    """Describe every command, or one: `retinue help endpoint create`."""
    root = context.find_root()
    if not command:
        click.echo(_summaries(root))
        return
    described: click.Command = root.command
    inner = root
    for name in command:
        following = described.get_command(inner, name) if isinstance(described, click.Group) else None
        if following is None:
            raise click.UsageError(f"no such command: {' '.join(command)}")
        described, inner = following, click.Context(following, parent=inner, info_name=following.name)
    click.echo(described.get_help(inner))


def main() -> None:
    """Runs the command line and ends the process."""
    streams.prepare()
    try:
        sys.exit(run(sys.argv[1:]))
    finally:
        streams.drop_unwritable()


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed it: programs end of that signal, and say nothing.
        streams.drop_output()
        return ExitCode.PIPE_CLOSED
    except OSError as error:
        # Of what commands do not answer for themselves.
        where = "standard output" if streams.is_of_output(error) else error.filename
        with contextlib.suppress(OSError):
            click.echo(f"retinue: {safe(f'{where}: ' if where else '')}{safe(error.strerror or str(error))}", err=True)
        streams.drop_output()
        return ExitCode.FAILURE
    return code


def _no_such_option(error: click.NoSuchOption) -> click.UsageError:
    """Returns the error with the options that a wrong one may mean; that both begin with dashes makes none alike."""
    parameters = error.ctx.command.get_params(error.ctx) if error.ctx is not None else []
    known = {
        name.lstrip("-"): name for item in parameters for name in (*item.opts, *item.secondary_opts) if name[:2] == "--"
    }
    wrong = error.option_name.lstrip("-")
    instead = [option for option in _OPTIONS_INSTEAD.get(wrong, ()) if option in known.values()]
    near = instead[:1] or [known[name] for name in nearest(wrong, known)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    if not instead and wrong in _OPTIONS_WITHOUT:
        hint = f" {_OPTIONS_WITHOUT[wrong]}"
    return click.UsageError(f"No such option {error.option_name!r}.{hint}", ctx=error.ctx)


def _run(arguments: Sequence[str]) -> int:
    stdout = sys.stdout
    try:
        code = cli.main(args=list(arguments), prog_name="retinue", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = _no_such_option(error)
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except SystemExit as error:
        if sys.stdout is not stdout:
            # What click makes of a closed pipe.
            raise BrokenPipeError from error
        raise
    except RetinueError as error:
        print_error(error)
        return of_error(error)
    return code if isinstance(code, int) else ExitCode.OK
