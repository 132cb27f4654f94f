"""`retinue ls`: sessions by filter and label, sorted, and as they change."""

from __future__ import annotations

import sys
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.sessions.session_views import session_columns
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.selecting import selected, selector_option
from retinue.client.command.show.columns import parse_path
from retinue.client.command.show.output import list_output_option, print_list, rows_of
from retinue.client.errors import OutOfRange
from retinue.client.session_view import fold
from retinue.manager.v1 import session_pb2, session_service_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.live import Live
    from rich.text import Text

    from retinue.client.client import Client


@click.command("ls")
@click.option("-a", "--all", "show_ended", is_flag=True, help="List ended sessions, too.")
@click.option(
    "--filter", "filter_", default="", metavar="TERMS", help="""Filter, as state = "RUNNING" AND project = "x"."""
)
@selector_option
@click.option("--limit", type=click.IntRange(1), help="List at most this many.")
@click.option(
    "--sort-by", metavar="PATH", help="Sort by a field, as .spec.name, or -.spec.priority for the largest first."
)
@click.option("-w", "--watch", is_flag=True, help="Show changes until Ctrl-C; in a pipe, one line each.")
@list_output_option
@pass_connection
@asynchronous
async def ls_command(
    connection: Connection,
    *,
    show_ended: bool,
    filter_: str,
    selectors: Sequence[str],
    limit: int | None,
    sort_by: str | None,
    watch: bool,
    output: str,
) -> int:
    """List sessions, newest first."""
    terms = selected(filter_, selectors)
    if watch and (limit or sort_by or output not in ("table", "wide")):
        raise click.UsageError(
            "--watch prints a table of all sessions: use it without --limit, --sort-by and other formats"
        )
    order = None if sort_by is None else parse_path(sort_by.removeprefix("-"), session_pb2.Session.DESCRIPTOR)
    async with connection.client() as client:
        if watch:
            await _Watch(client, terms, show_ended=show_ended, wide=output == "wide").run()
            return ExitCode.OK
        found = client.sessions.list(filter=terms, show_ended=show_ended, limit=limit)
        sessions = [session.view async for session in found]
    if order is not None and sort_by is not None:
        sessions.sort(key=order.key, reverse=sort_by.startswith("-"))
    message = session_service_pb2.ListSessionsResponse(sessions=sessions)
    print_list(output, message, sessions, session_columns(time.time()), lambda session: session.id)
    return ExitCode.OK


class _Watch:
    """The list as it changes: on a terminal drawn again, else each changed session on a line."""

    def __init__(self, client: Client, terms: str, *, show_ended: bool, wide: bool) -> None:
        self._client = client
        self._terms = terms
        self._show_ended = show_ended
        self._wide = wide
        # By id, newest first.
        self._sessions: dict[str, session_pb2.Session] = {}
        self._known: set[str] = set()

    async def run(self) -> None:
        """Shows the list until it is cancelled. Raises CallError."""
        if not sys.stdout.isatty():
            await self._follow(None)
            return
        from rich.console import Console  # noqa: PLC0415  # a list needs none of it

        from retinue.client.command.show.live_view import LiveView  # noqa: PLC0415  # as above

        with LiveView(console=Console(), get_renderable=self._drawn, refresh_per_second=4, transient=True) as live:
            await self._follow(live)

    async def _follow(self, live: Live | None) -> None:
        while True:
            revision, incarnation = await self._read()
            if live is None:
                self._print(list(self._sessions.values()), titles=True)
            try:
                events = self._client.sessions.watch(
                    after_revision=revision, incarnation=incarnation, filter=self._terms
                )
                async with aclosing(events):
                    async for event in events:
                        changed = self._take(event)
                        if live is None and changed is not None:
                            self._print([changed], titles=False)
            except OutOfRange:
                # The journal does not go back that far, or the database was restored: the list is read again.
                continue

    async def _read(self) -> tuple[int, str]:
        """Reads the list; returns the position that it is true at."""
        revision, incarnation = 0, ""
        self._sessions.clear()
        async for session in self._client.sessions.list(filter=self._terms, show_ended=self._show_ended):
            # Of several pages the first is the oldest.
            if not self._sessions:
                revision, incarnation = session.revision, session.incarnation
            self._sessions[session.id] = session.view
        self._known = set(self._sessions)
        return revision, incarnation

    def _take(self, event: session_pb2.SessionEvent) -> session_pb2.Session | None:
        """Takes in an event; returns the session if it shows."""
        before = self._sessions.get(event.session_id)
        if before is None and event.session_id in self._known:
            return None
        after = fold(before, event)
        if after is None or after == before:
            return None
        self._known.add(after.id)
        if enum_names.is_ended(after) and not self._show_ended:
            self._sessions.pop(after.id, None)
        elif before is None:
            self._sessions = {after.id: after, **self._sessions}
        else:
            self._sessions[after.id] = after
        return after

    def _print(self, sessions: Sequence[session_pb2.Session], *, titles: bool) -> None:
        lines = rows_of(sessions, session_columns(time.time()), wide=self._wide)
        for line in lines if titles else lines[1:]:
            click.echo(line)
        sys.stdout.flush()

    def _drawn(self) -> Text:
        from rich.text import Text  # noqa: PLC0415  # as above

        lines = rows_of(list(self._sessions.values()), session_columns(time.time()), wide=self._wide)
        return Text("\n").join(Text.from_ansi(line) for line in lines)
