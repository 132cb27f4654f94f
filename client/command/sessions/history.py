"""`retinue describe`, `history` and `restart`: a session with all that happened to it, and again."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

import click

from retinue.client.command.sessions.following import event_line
from retinue.client.command.sessions.session_views import print_session
from retinue.client.command.shell import completed_names
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.show.output import plain
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.v1 import session_pb2


_TERMINATING = "TERMINATING"


@click.command("describe")
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def describe_command(connection: Connection, session: str) -> None:
    """Show one session, its kernels, and what happened to it."""
    async with connection.client() as client:
        view = (await client.sessions.get(session)).view
        events = await client.sessions.history(view.id)
    print_session("wide", view)
    click.echo()
    _print_events(events)


@click.command("history")
@click.option("-o", "--output", type=click.Choice(["lines", "json", "jsonl"]), default="lines", show_default=True)
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def history_command(connection: Connection, session: str, output: str) -> None:
    """List what happened to a session, oldest first; `retinue watch` continues from there.

    With -o json, or jsonl, every event is one line of proto JSON.
    """
    async with connection.client() as client:
        events = await client.sessions.history(session)
    if output != "lines":
        for event in events:
            click.echo(json.dumps(plain(event), ensure_ascii=False))
    else:
        _print_events(events)


def _print_events(events: Sequence[session_pb2.SessionEvent]) -> None:
    for event in events:
        # Revision and id say nothing new here: the time does.
        _, _, what = event_line(event).split("  ", 2) if event.WhichOneof("change") else ("", "", "")
        if what:
            moment = event.create_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%SZ")
            click.echo(f"{moment}  {what}")


@click.command("restart")
@click.option("-f", "--force", is_flag=True, help="Kill at once, without the session's grace.")
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def restart_command(connection: Connection, session: str, force: bool) -> int:
    """Run a session again from its beginning; print its id.

    A session that has not ended returns to the queue; sessions that depend on it keep waiting. For an ended session, a
    new one with the same name and request is submitted, which depends on no others. The work directory is lost.
    Replicas of endpoints are not restarted.
    """
    async with connection.client() as client:
        found = await client.sessions.get(session)
        spec = found.view.spec
        if spec.endpoint:
            raise UsageError(f"{safe(found.name)} is a replica of endpoint {safe(spec.endpoint)}, which replaces it")
        if not found.is_ended and found.state != _TERMINATING:
            await found.restart(force=force)
            click.echo(found.id)
            return ExitCode.OK
        if spec.webhooks:
            raise UsageError(f"{safe(found.name)} has webhooks, whose secrets cannot be read: submit it again")
        await found.wait_ended()
        # What the template gave is in the request already.
        for field in ("template", "depends_on", "runs_after", "runs_after_failure", "runs_after_label", "hold"):
            spec.ClearField(field)
        if spec.earliest_start_time.ToDatetime(tzinfo=dt.UTC) <= dt.datetime.now(dt.UTC):
            spec.ClearField("earliest_start_time")
        again = await client.sessions.create_from(spec)
    click.echo(again.id)
    return ExitCode.OK
