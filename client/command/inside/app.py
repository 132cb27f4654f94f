"""`retinue app`: programs that a session starts on demand."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.app_catalogue import CATALOGUE
from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.variables import env_options
from retinue.client.command.show.output import table
from retinue.client.command.show.terminal_text import Printer, raw_option
from retinue.types.v1 import app_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.client.client import Client
    from retinue.client.sessions import Session

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

    A session's request defines its apps (`retinue run --app`, or `apps` in a file for `retinue apply`), each with its
    service port; apps of the catalogue (`retinue app ls`) need only a name. `retinue port-forward SESSION NAME`
    forwards a port here to an app, and `retinue open SESSION NAME` prints a link for a browser.
    """


@app_command.command("ls")
@click.argument("session", required=False, default="", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def list_apps(connection: Connection, *, session: str) -> int:
    """List the apps of SESSION, or without one those of the catalogue.

    The image, or the node, must have the program of an app of the catalogue. Such an app needs only its name:

    \b
      retinue run --type interactive -n lab --app streamlit
      retinue app start lab streamlit page.py
      retinue open lab streamlit
    """
    if not session:
        catalogued = [
            (app.name, str(app.port), app.arguments or "-", app.install, app.summary) for app in CATALOGUE.values()
        ]
        _print(("NAME", "PORT", "ARGUMENTS", "NEEDS", "WHAT"), catalogued)
        return ExitCode.OK
    async with connection.client() as client:
        found = await client.sessions.get(session)
        apps = found.view.spec.apps
        states = [await _state_of(client, found, app.name) for app in apps]
    rows = [(safe(app.name), state, safe(shlex.join(app.command))) for app, state in zip(apps, states, strict=True)]
    _print(("NAME", "STATE", "COMMAND"), rows)
    return ExitCode.OK


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in table(titles, rows, colour=False):
        click.echo(line)


async def _state_of(client: Client, session: Session, name: str) -> str:
    if session.state != "RUNNING":
        return "-"
    return enum_names.name_of(_STATE, (await client.sessions.app(session.id, name)).state).lower()


class _Start(click.Command):
    """Options of the app follow its name: all that follows it is the app's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; called with all that follows the name of the command."""
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)


@app_command.command("start", cls=_Start)
@env_options
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("name", shell_complete=completed_names.ports)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_connection
@asynchronous
async def start(
    connection: Connection, *, env: dict[str, str], session: str, name: str, arguments: tuple[str, ...]
) -> int:
    """Start NAME in main1 of SESSION, unless it runs, and wait until it answers.

    The app's definition says which ARGUMENTS and variables it takes; apps of the catalogue take any arguments, such as
    the script of `streamlit`.
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
