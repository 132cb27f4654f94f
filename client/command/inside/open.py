"""`retinue open`: a port of a session in a browser, without a local port."""

from __future__ import annotations

import asyncio
import webbrowser

import click

from retinue.client.command.shell import completed_names
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.errors import UsageError


@click.command("open")
@click.option("--path", default="/", show_default=True, help="Path of the link, with a query if needed.")
@click.option("--browser", is_flag=True, help="Open the link in a browser here.")
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("port", shell_complete=completed_names.ports)
@pass_connection
@asynchronous
async def open_command(connection: Connection, *, path: str, browser: bool, session: str, port: str) -> int:
    """Print a link to PORT of a running session's main1, a name or a number, for a browser.

    The link works once, within a minute. The browser that opens it may then use the port for 12 hours, or until the
    session ends. The manager needs a gateway for HTTP; without one, use `retinue port-forward`.

    \b
      retinue open my-session jupyter
      retinue open my-session jupyter --path /lab --browser
    """
    async with connection.client() as client:
        ticket = await client.sessions.create_port_ticket(session, port, path)
    click.echo(safe(ticket.url))
    if browser and not await asyncio.to_thread(webbrowser.open, ticket.url):
        raise UsageError("this machine has no browser to open it in")
    return ExitCode.OK
