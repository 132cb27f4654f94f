"""`retinue get`, `explain` and `rm`: sessions as they are, why they wait, and their end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.sessions.session_views import print_session
from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode, of_error
from retinue.client.command.shell.interrupts import said_when_cancelled
from retinue.client.command.shell.print_error import print_error
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.selecting import end_sessions, say_none, selected, selector_option, term
from retinue.client.command.shell.text import or_dash, short_id, since, span
from retinue.client.command.show.output import (
    output_option,
    print_facts,
    print_message,
    table,
)
from retinue.client.errors import CallError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.client.sessions import Session


@click.command("get")
@output_option
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def get_command(connection: Connection, session: str, output: str) -> None:
    """Show one session, by id, by the first 8 or more characters of it, by number, or by name (of others: OWNER/NAME).

    For ended kernels it shows processor time and peak memory, also in percent of their slots.
    """
    async with connection.client() as client:
        view = (await client.sessions.get(session)).view
    print_session(output, view)


@click.command("explain")
@output_option
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def explain_command(connection: Connection, session: str, output: str) -> None:
    """Explain why a session waits: what is short, where, and by how much."""
    async with connection.client() as client:
        answer = await client.sessions.explain(session)
    if output in ("json", "yaml"):
        print_message(output, answer)
        return
    if output == "name":
        click.echo(safe(answer.reason))
        return
    tier = enum_names.name_of(enum_names.REASON_TIER, answer.tier)
    now = time.time()
    next_try = enum_names.time_of(answer, "next_try_time")
    estimate = enum_names.time_of(answer, "estimated_start_time")
    facts = [
        ("state", enum_names.name_of(enum_names.SESSION_STATE, answer.state)),
        ("reason", safe(answer.reason)),
        ("message", safe(answer.message)),
        ("kind", "" if tier == "UNSPECIFIED" else tier.lower()),
        ("queue", f"number {answer.queue_position} of {answer.queue_length}" if answer.queue_position else ""),
        ("waits for", ", ".join(safe(parent.name or short_id(parent.session_id)) for parent in answer.waits_for)),
        ("tries", str(answer.tries) if answer.tries else ""),
        ("evaluated", f"{since(answer, 'evaluate_time', now)} ago" if answer.HasField("evaluate_time") else ""),
        ("failed on", safe(", ".join(answer.failed_agents))),
        ("room", "" if estimate is None else f"in {span(max(0.0, estimate - now))} at the latest, by time limits"),
        ("agents", ", ".join(f"{count.number} {safe(count.cause)}" for count in answer.agents)),
        ("would start with", safe("; or ".join(answer.would_start_with))),
        ("advice", safe("; ".join(answer.advice))),
        ("next try", "" if next_try is None else f"in {span(next_try - now)}"),
        *((safe(condition.type), safe(condition.message)) for condition in answer.conditions),
    ]
    print_facts(facts)
    if answer.shortfalls:
        rows = [
            [or_dash(s.hostname or "all together"), *map(or_dash, (s.slot, s.requested, s.best_agent, s.free, s.short))]
            for s in answer.shortfalls
        ]
        click.echo()
        for line in table(["KERNEL", "SLOT", "WANTS", "BEST AGENT", "FREE", "SHORT"], rows, colour=False):
            click.echo(line)


@click.command("rm")
@click.option("-f", "--force", is_flag=True, help="Kill at once, without the session's grace.")
@click.option("-w", "--wait", is_flag=True, help="Wait until the sessions have ended.")
@click.option("--timeout", callback=options.span, metavar="TIME", help="With --wait: give up after this time.")
@selector_option
@click.option("--all", "everything", is_flag=True, help="End all your sessions.")
@click.option(
    "--dry-run", "--validate-only", is_flag=True, help="Print the ids of the sessions that would end; end none."
)
@click.argument("sessions", shell_complete=completed_names.sessions, nargs=-1)
@pass_connection
@asynchronous
async def rm_command(
    connection: Connection,
    *,
    sessions: tuple[str, ...],
    selectors: Sequence[str],
    everything: bool,
    dry_run: bool,
    force: bool,
    wait: bool,
    timeout: float | None,  # noqa: ASYNC109
) -> int:
    """End sessions; try all, and exit with the code of the first failure.

    With -l or --all, end those of yours that have not ended: `retinue rm -l run=7`.
    """
    if bool(sessions) + bool(selectors) + everything != 1:
        raise click.UsageError("name sessions, or give -l NAME=VALUE, or --all")
    async with connection.client() as client:
        if not sessions:
            caller = (await client.users.caller()).name
            found = client.sessions.list(filter=selected(term("owner", caller), selectors))
            sessions = tuple([session.id async for session in found])
            say_none(sessions)
        if dry_run:
            for named in sessions:
                click.echo((await client.sessions.get(named)).id)
            return ExitCode.OK
        code: int = ExitCode.OK
        ending: list[Session] = []
        for answer in await end_sessions(client, sessions, force=force):
            if isinstance(answer, CallError):
                print_error(answer)
                code = code or of_error(answer)
            else:
                if answer.state == "TERMINATED":
                    click.echo(f"retinue: {safe(answer.name)} had ended already", err=True)
                click.echo(answer.id)
                ending.append(answer)
        if wait:
            async with said_when_cancelled("the sessions end all the same"), asyncio.TaskGroup() as group:
                for session in ending:
                    group.create_task(session.wait_ended(timeout))
    return code
