"""`retinue app`: programs that a session starts on demand."""

from __future__ import annotations

import click

from retinue.client import enum_names
from retinue.client.command import completed_names, options
from retinue.client.command.connection import Connection, asynchronous, pass_connection
from retinue.client.command.exit_codes import ExitCode
from retinue.client.command.printable import safe
from retinue.client.command.terminal_text import Printer, raw_option
from retinue.client.command.variables import env_options
from retinue.types.v1 import app_pb2 as pb

_STATE = pb.AppState.DESCRIPTOR


_MAX_GRACE = 20


def _grace(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Returns the seconds; usage errors for more than the manager takes."""
    seconds = options.span(context, parameter, value)
    if seconds is not None and seconds > _MAX_GRACE:
        raise click.BadParameter(f"must be at most {_MAX_GRACE}s", param=parameter)
    return seconds


@click.group("app")
def app_command() -> None:
    """Start and stop programs of a session, such as JupyterLab.

    A session's request defines them (`retinue run --app`, or `apps` in a file for `retinue apply`), each with the
    service port that it answers at. `retinue port-forward SESSION NAME` then gives it a port here,
    and `retinue open SESSION NAME` a link for a browser.
    """


@app_command.command("start")
@env_options
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("name")
@click.argument("arguments", nargs=-1)
@pass_connection
@asynchronous
async def start(
    connection: Connection, *, env: dict[str, str], session: str, name: str, arguments: tuple[str, ...]
) -> int:
    """Start NAME in main1 of SESSION, unless it runs, and wait until it answers.

    ARGUMENTS and variables are those that its definition allows.
    """
    async with connection.client() as client:
        while True:
            status = await client.sessions.start_app(session, name, arguments, environment=env)
            if status.state == pb.APP_STATE_RUNNING:
                break
            click.echo(f"{safe(name)} is starting", err=True)
    click.echo(f"{safe(name)} answers at port {status.port}")
    return ExitCode.OK


@app_command.command("stop")
@click.option("--grace", callback=_grace, metavar="TIME", help="Time to end by itself, up to 20s.  [default: 10s]")
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("name")
@pass_connection
@asynchronous
async def stop(connection: Connection, *, grace: float | None, session: str, name: str) -> int:
    """End NAME in main1 of SESSION, if it runs; it may be started again."""
    async with connection.client() as client:
        status = await client.sessions.stop_app(session, name, grace=grace)
    if status.state == pb.APP_STATE_STOPPED:
        return ExitCode.OK
    click.echo(f"{safe(name)} is still {enum_names.name_of(_STATE, status.state).lower()}", err=True)
    return ExitCode.FAILURE


@app_command.command("status")
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("name")
@pass_connection
@asynchronous
async def show_status(connection: Connection, *, session: str, name: str) -> int:
    """Show whether NAME is stopped, starting or running; ends with 0 if it is running."""
    async with connection.client() as client:
        status = await client.sessions.app(session, name)
    click.echo(enum_names.name_of(_STATE, status.state).lower())
    return ExitCode.OK if status.state == pb.APP_STATE_RUNNING else ExitCode.FAILURE


@app_command.command("logs")
@raw_option
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("name")
@pass_connection
@asynchronous
async def show_logs(connection: Connection, *, session: str, name: str, raw: bool) -> int:
    """Print the last of what NAME printed, up to 16 KiB."""
    async with connection.client() as client:
        status = await client.sessions.app(session, name)
    printer = Printer(raw=raw)
    printer.write(status.log)
    printer.finish()
    return ExitCode.OK
