"""`retinue rename`, `priority`, `hold` and `release`: what of a session may change after it was asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell import completed_names
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode, of_error
from retinue.client.command.shell.print_error import print_error
from retinue.client.command.shell.selecting import say_none, selected, selector_option, term
from retinue.client.errors import CallError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command("rename")
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("name")
@pass_connection
@asynchronous
async def rename_command(connection: Connection, session: str, name: str) -> None:
    """Give a session that has not ended another name; print its id."""
    async with connection.client() as client:
        click.echo((await client.sessions.update(session, name=name)).id)


@click.command("priority")
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("priority", type=click.IntRange(0, 100))
@pass_connection
@asynchronous
async def priority_command(connection: Connection, session: str, priority: int) -> None:
    """Give a pending session another priority, from 0 (last) to 100 (first); print its id.

    Quotas may say how high: `retinue quotas ls`.
    """
    async with connection.client() as client:
        click.echo((await client.sessions.update(session, priority=priority)).id)


@click.command("hold")
@selector_option
@click.argument("sessions", shell_complete=completed_names.sessions, nargs=-1)
@pass_connection
@asynchronous
async def hold_command(connection: Connection, sessions: Sequence[str], selectors: Sequence[str]) -> int:
    """Hold pending sessions in the queue until `retinue release`; print their ids.

    With -l, hold all your pending sessions with a label. Exit with the code of the first failure.
    """
    return await _set_hold(connection, sessions, selectors, hold=True)


@click.command("release")
@selector_option
@click.argument("sessions", shell_complete=completed_names.sessions, nargs=-1)
@pass_connection
@asynchronous
async def release_command(connection: Connection, sessions: Sequence[str], selectors: Sequence[str]) -> int:
    """Release held sessions; print their ids.

    With -l, release all your held sessions with a label. Exit with the code of the first failure.
    """
    return await _set_hold(connection, sessions, selectors, hold=False)


async def _set_hold(connection: Connection, sessions: Sequence[str], selectors: Sequence[str], *, hold: bool) -> int:
    if bool(sessions) + bool(selectors) != 1:
        raise click.UsageError("name sessions, or give -l NAME=VALUE")
    async with connection.client() as client:
        if selectors:
            mine = selected(term("owner", (await client.users.caller()).name), [term("state", "PENDING"), *selectors])
            sessions = [session.id async for session in client.sessions.list(filter=mine)]
            say_none(sessions)
        answers = await asyncio.gather(
            *(client.sessions.update(session, hold=hold) for session in sessions), return_exceptions=True
        )
    code: int = ExitCode.OK
    for answer in answers:
        if isinstance(answer, CallError):
            print_error(answer)
            code = code or of_error(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            click.echo(answer.id)
    return code
