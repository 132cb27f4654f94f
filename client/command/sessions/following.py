"""`retinue watch` and `wait`: what happens to sessions, until something does."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import click
from rich.console import Console

from retinue.client import enum_names
from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode, of_session
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import short_id
from retinue.client.command.show.output import plain
from retinue.client.command.show.progress import open_progress
from retinue.client.command.show.session_texts import changes
from retinue.client.errors import SessionEnded, UsageError
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from retinue.client.client import Client
    from retinue.client.sessions import Session


@click.command("watch")
@click.option("-o", "--output", type=click.Choice(["lines", "json", "jsonl"]), default="lines", show_default=True)
@click.option("--after", type=click.IntRange(0), help="Start after this revision of the journal; 0 is the oldest kept.")
@click.option(
    "--filter", "filter_", default="", metavar="TERMS", help="""Filter, as owner = "ann" AND project = "x"."""
)
@click.argument("session", shell_complete=completed_names.sessions, required=False)
@pass_connection
@asynchronous
async def watch_command(
    connection: Connection, session: str | None, output: str, after: int | None, filter_: str
) -> int:
    """Follow the events of a session until it ends, and end with its exit code; without one, of all sessions.

    With -o json, or jsonl, every event is one line of proto JSON.
    """
    if session is not None and filter_:
        raise click.UsageError("--filter selects among all sessions: use it without SESSION")
    async with connection.client() as client:
        if session is None:
            await _watch_all(client, output, after, filter_)
            return ExitCode.OK
        handle = await client.sessions.get(session)
        if output != "lines":
            events = client.sessions.watch(
                after_revision=handle.revision if after is None else after,
                incarnation=handle.incarnation if after is None else "",
                session_id=handle.id,
                until_ended=True,
            )
            async with aclosing(events):
                async for event in events:
                    _print_json(event)
            return of_session((await handle.refresh()).view)
        progress = open_progress(Console())
        try:
            async with aclosing(handle.progress()) as steps:
                async for step in steps:
                    progress.show(step.view)
        finally:
            progress.close()
        return of_session(handle.view)


async def _watch_all(client: Client, output: str, after: int | None, filter_: str) -> None:
    async with aclosing(client.sessions.watch(after_revision=after, filter=filter_)) as events:
        async for event in events:
            if output != "lines":
                _print_json(event)
            else:
                click.echo(event_line(event))


def _print_json(event: session_pb2.SessionEvent) -> None:
    click.echo(json.dumps(plain(event), ensure_ascii=False))


def event_line(event: session_pb2.SessionEvent) -> str:  # noqa: PLR0911  # one for each kind
    """Returns one event as a line, safe."""
    change = event.WhichOneof("change")
    head = f"{event.revision}  {short_id(event.session_id)}"
    if change == "created":
        return f"{head}  {changes(None, event.created)[0]}"
    if change == "session_moved":
        moved = event.session_moved
        code = f", exit code {moved.exit_code}" if moved.HasField("exit_code") else ""
        why = ": ".join(safe(part) for part in (moved.reason, moved.message) if part)
        return f"{head}  {enum_names.name_of(enum_names.SESSION_STATE, moved.to_state)}{code}" + (
            f" ({why})" if why else ""
        )
    if change == "kernel_moved":
        kernel = event.kernel_moved
        state = enum_names.name_of(enum_names.KERNEL_STATE, kernel.to_state)
        return f"{head}  {safe(kernel.hostname)} {state}" + (f" on {safe(kernel.agent)}" if kernel.agent else "")
    if change == "kernel_accessed":
        entered = event.kernel_accessed
        target = " ".join(filter(None, (str(entered.port or ""), safe(entered.app))))
        method = enum_names.name_of(enum_names.ACCESS_METHOD, entered.method).lower().replace("_", " ") + (
            f" {target}" if target else ""
        )
        details = (
            (" from ", entered.source),
            (" as ", entered.connection_address),
            (", key ", entered.key_fingerprint),
        )
        shown = "".join(f"{word}{safe(value)}" for word, value in details if value)
        return f"{head}  {safe(entered.user)} enters {safe(entered.hostname)}: {method}{shown}"
    if change == "session_updated":
        updated = event.session_updated
        hold = ", held" if updated.hold else ""
        return f"{head}  {safe(updated.user)} changes it: name {safe(updated.name)}, priority {updated.priority}{hold}"
    if change == "reason_changed":
        changed = event.reason_changed
        why = ": ".join(safe(part) for part in (changed.reason, changed.message) if part)
        conditions = [f"{safe(condition.type)}: {safe(condition.message)}" for condition in changed.conditions]
        return f"{head}  {'; '.join(filter(None, [why, *conditions]))}"
    return head


@click.command("wait")
@click.option(
    "--for",
    "goal",
    type=click.Choice(["RUNNING", "TERMINATED", "SUCCESS"], case_sensitive=False),
    default="TERMINATED",
    show_default=True,
    help="TERMINATED is any end.",
)
@click.option("--timeout", callback=options.span, metavar="TIME", help="Exit with 5 after this time.")
@click.argument("sessions", shell_complete=completed_names.sessions, nargs=-1, required=True)
@pass_connection
@asynchronous
async def wait_command(connection: Connection, sessions: tuple[str, ...], goal: str, timeout: float | None) -> int:  # noqa: ASYNC109
    """Wait until sessions are in a state.

    For RUNNING, exit with 0 when all have run. Otherwise exit with the session's own code: of several, the first that
    is not 0.
    """
    async with connection.client() as client:
        handles = [await client.sessions.get(session) for session in sessions]
        codes = await asyncio.gather(*(_wait(handle, goal.upper(), timeout) for handle in handles))
    return next((code for code in codes if code), ExitCode.OK)


async def _wait(session: Session, goal: str, timeout: float | None) -> int:  # noqa: ASYNC109
    if goal == "SUCCESS" and session.view.spec.type != session_pb2.SESSION_TYPE_BATCH:
        raise UsageError(f"{safe(session.name)} is no batch session, and has no result: wait for RUNNING or TERMINATED")
    if goal == "RUNNING":
        try:
            await session.wait("RUNNING", timeout=timeout)
        except SessionEnded as error:
            click.echo(f"retinue: {error}", err=True)
            return of_session(error.session) or ExitCode.FAILURE
        return ExitCode.OK
    await session.wait_ended(timeout)
    if goal == "SUCCESS" and session.result != "SUCCESS":
        click.echo(f"retinue: {safe(session.name)} ended {session.result}", err=True)
        return of_session(session.view) or ExitCode.FAILURE
    return of_session(session.view)
