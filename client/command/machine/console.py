"""`retinue console`: the web console, logged in."""

from __future__ import annotations

import asyncio
import os
import sys
import webbrowser
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command("console")
@click.option("--no-open", is_flag=True, help="Only print the link.")
@pass_connection
@asynchronous
async def console_command(connection: Connection, *, no_open: bool) -> int:
    """Print a link to the web console, and open it in this machine's browser if it has one.

    The link works once, within a minute. The browser that opens it is logged in as you for 12 hours, until you log out,
    or until the token of this command ends. The manager needs a gateway for HTTP. If standard output is no terminal,
    the link is only printed.

    \b
      retinue console
      retinue console --no-open
    """
    async with connection.client() as client:
        ticket = await client.tokens.create_console_ticket()
    click.echo(safe(ticket.url))
    if not no_open and sys.stdout.isatty() and has_browser(sys.platform, os.environ):
        await asyncio.to_thread(webbrowser.open, ticket.url)
    return ExitCode.OK


def has_browser(platform: str, environ: Mapping[str, str]) -> bool:
    """Returns whether a machine shows windows: a browser of text would take the terminal, and runs no console."""
    return platform in {"darwin", "win32"} or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))
