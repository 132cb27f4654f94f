"""`retinue port-forward`: local ports that lead to ports of a session."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import time
from typing import TYPE_CHECKING

import click

from retinue.client.command.inside import ssh_socket
from retinue.client.command.inside.tunnelled_port import TunnelledPort
from retinue.client.command.shell import completed_names
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.errors import CallError, UsageError
from retinue.client.kernel.port import LocalPort, PortConnection, carry_pipes, open_port_method
from retinue.client.settings import read_ca
from retinue.client.transport.channel import open_channel

if TYPE_CHECKING:
    from collections.abc import Collection

    from retinue.client.sessions import Session


_PORTS = range(65_536)
_START_SECONDS, _PAUSE_SECONDS = 5.0, 0.1


@click.command("port-forward")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address of this machine to listen at.")
@click.option("--stdio", is_flag=True, help="Carry standard input and output to the port, for one connection.")
@click.option("--pass-socket", is_flag=True, hidden=True, help="With --stdio: pass the socket on, for ProxyUseFdpass.")
@click.option("-k", "--kernel", default="", help="With --stdio: hostname of a kernel of a system session.")
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("ports", nargs=-1, required=True, metavar="NAME[:LOCAL]...", shell_complete=completed_names.ports)
@pass_connection
def port_forward_command(
    connection: Connection,
    *,
    address: str,
    stdio: bool,
    pass_socket: bool,
    kernel: str,
    session: str,
    ports: tuple[str, ...],
) -> int:
    """Forward local ports to ports of a running session's main1.

    PORT is a name or a number that the session or its image declares; LOCAL is the port here, by default a free one.
    Forward until Ctrl-C, or until the session ends. A connection that fails does not affect the others.

    \b
      retinue port-forward my-session jupyter
      retinue port-forward my-session web:8080 5432:15432
      ssh -o ProxyCommand='retinue port-forward --stdio %h sftp' my-session
    """
    if stdio:
        if len(ports) != 1 or ":" in ports[0]:
            raise UsageError("--stdio is for one port without :LOCAL")
        handover = ssh_socket.fork_handover() if pass_socket else None
        return _carry_stdio(connection, session, ports[0], kernel, handover)
    if kernel:
        raise UsageError("--kernel needs --stdio")
    return _forward(connection, session, ports, address)


@asynchronous
async def _forward(connection: Connection, session: str, ports: tuple[str, ...], address: str) -> int:
    endpoint = connection.settings().endpoint
    async with connection.client() as client, contextlib.AsyncExitStack() as stack:
        found = await client.sessions.get(session)
        spec = found.view.spec
        declared = {word for each in spec.service_ports for word in (each.name, *map(str, each.ports))}
        declared |= {
            str(port) for each in spec.preopen_ports for port in range(each.first, max(each.first, each.last) + 1)
        }
        for port in ports:
            name, local = _parsed(port)
            _refuse_reversed(name, local, declared)
            await _probe(found, name)
            connect = TunnelledPort(found, name, endpoint).connect
            failed = functools.partial(_print_failure, name)
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


@asynchronous
async def _carry_stdio(
    connection: Connection, session: str, port: str, kernel: str, handover: ssh_socket.SocketHandover | None
) -> int:
    """Carries standard input and output to a port, or gives away a socket that leads there."""
    settings = connection.settings()
    async with contextlib.AsyncExitStack() as stack:
        if handover is not None:
            stack.enter_context(handover.client_waits())
        channel = await stack.enter_async_context(open_channel(settings.endpoint, settings.token, read_ca(settings.ca)))
        open_port = open_port_method(channel)
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                async with PortConnection(open_port, session, port, kernel, direct=handover is not None) as remote:
                    if handover is None:
                        await carry_pipes(sys.stdin.fileno(), sys.stdout.fileno(), remote)
                    else:
                        await ssh_socket.lead(remote, handover, settings.endpoint)
                    return ExitCode.OK
            except CallError as error:
                # What has just been started listens soon.
                if error.reason != "PORT_CLOSED" or time.monotonic() > until:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
    return ExitCode.OK


def _parsed(port: str) -> tuple[str, int]:
    name, colon, local = port.partition(":")
    if not name or (colon and not (local.isdecimal() and int(local) in _PORTS)):
        raise UsageError(f"{port!r} is not NAME[:LOCAL]")
    return name, int(local or 0)


def _refuse_reversed(name: str, local: int, declared: Collection[str]) -> None:
    """Refuses `LOCAL:REMOTE`, as kubectl and Docker have it, where the session has that port and not the first one."""
    if name not in declared and str(local) in declared:
        raise UsageError(f"the session's port comes first, unlike kubectl's and Docker's: {local}:{name}")


async def _probe(session: Session, name: str) -> None:
    """Opens the port once to raise errors that no later connection could mend;
    a port where nothing listens yet is only reported.
    """
    try:
        async with session.open_port(name):
            pass
    except CallError as error:
        if error.reason != "PORT_CLOSED":
            raise
        _print_failure(name, error)
        if any(app.name == name for app in session.view.spec.apps):
            click.echo(f"`retinue app start {safe(session.name)} {safe(name)}` starts what answers there", err=True)


def _print_failure(name: str, error: CallError) -> None:
    click.echo(f"{safe(name)}: {safe(str(error))}", err=True)
