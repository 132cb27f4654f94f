"""`retinue port-forward`: local ports that lead to ports of a session."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import click

from retinue.client.command.connection import Connection, asynchronous, pass_connection
from retinue.client.command.exit_codes import ExitCode
from retinue.client.command.text import safe
from retinue.client.errors import CallError, UsageError
from retinue.client.port import LocalPort

if TYPE_CHECKING:
    from retinue.client.session import Session


_PORTS = range(65_536)


@click.command("port-forward")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address of this machine to listen at.")
@click.argument("session")
@click.argument("ports", nargs=-1, required=True, metavar="NAME[:LOCAL]...")
@pass_connection
@asynchronous
async def port_forward_command(connection: Connection, *, address: str, session: str, ports: tuple[str, ...]) -> int:
    """Listens at local ports, and carries each connection to a port of a running session's main1.

    A port is a name or a number that the session or its image declares; LOCAL is the port here, by default any that is free. Continues until
    it is interrupted, or the session terminates. A connection that fails does not affect the others.

    \b
      retinue port-forward my-session jupyter
      retinue port-forward my-session web:8080 5432:15432
    """
    async with connection.client() as client, contextlib.AsyncExitStack() as stack:
        found = await client.sessions.get(session)
        for port in ports:
            name, local = _parsed(port)
            await _probe(found, name)
            connect, failed = functools.partial(found.open_port, name), functools.partial(_print_failure, name)
            here = LocalPort(connect, address, local, failed=failed)
            try:
                host, number = (await stack.enter_async_context(here)).address
            except OSError as error:
                raise UsageError(f"cannot listen at {address}:{local}: {error.strerror}") from error
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"{shown}:{number} -> {safe(found.name)}:{safe(name)}")
        await found.wait_ended()
        click.echo(f"{safe(found.name)} has ended", err=True)
    return ExitCode.OK


def _parsed(port: str) -> tuple[str, int]:
    name, colon, local = port.partition(":")
    if not name or (colon and not (local.isdecimal() and int(local) in _PORTS)):
        raise UsageError(f"{port!r} is not NAME[:LOCAL]")
    return name, int(local or 0)


async def _probe(session: Session, name: str) -> None:
    """Opens the port once to raise errors that no later connection could mend; a port where nothing listens yet is only reported."""
    try:
        async with session.open_port(name):
            pass
    except CallError as error:
        if error.reason != "PORT_CLOSED":
            raise
        _print_failure(name, error)
        if any(service.name == name for service in session.view.spec.services):
            click.echo(f"`retinue app start {safe(session.name)} {safe(name)}` starts what answers there", err=True)


def _print_failure(name: str, error: CallError) -> None:
    click.echo(f"{safe(name)}: {safe(str(error))}", err=True)
