"""`retinue ssh`: OpenSSH's client on a shell in a kernel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from retinue.client.command.inside import client_program, ssh_access, ssh_blocks, ssh_socket
from retinue.client.command.shell import completed_names, terminal
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.errors import CallError, UsageError
from retinue.client.kernel.port import carry_pipes

if TYPE_CHECKING:
    from retinue.client.kernel.attachment import Attachment

_PORTS = range(22_000, 23_000)
_START_SECONDS, _PAUSE_SECONDS = 10.0, 0.05
_WORDS_LIMIT = 1 << 16


@click.command("ssh", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-k", "--kernel", default="", help="Hostname of the kernel.  [default: main1]")
@click.option("--stdio", default="", hidden=True, metavar="HOME", help="Carry one connection, for ProxyCommand.")
@click.option("--pass-socket", is_flag=True, hidden=True, help="With --stdio: pass the socket on, for ProxyUseFdpass.")
@click.option("--refresh", is_flag=True, hidden=True, help="Only renew the keys, for `Match exec`.")
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_connection
def ssh_command(
    connection: Connection,
    *,
    kernel: str,
    stdio: str,
    pass_socket: bool,
    refresh: bool,
    session: str,
    arguments: tuple[str, ...],
) -> int:
    """Open a shell in a running session by OpenSSH's `ssh`, or run a command there, and end with its exit code.

    ARGUMENTS that begin with `-` are options of `ssh`. The connection has a server of its own, which runs as the
    kernel's user; this program's key is added to the user's authorized keys. Programs that you leave running (tmux,
    `nohup`, the server of an IDE) go on after the connection. `retinue ssh-config` makes the session a host for IDEs.

    \b
      retinue ssh my-session
      retinue ssh my-session -- -L 8888:localhost:8888
      retinue ssh my-session nvidia-smi
    """
    if stdio:
        handover = ssh_socket.fork_handover() if pass_socket else None
        return _carry(connection, session, kernel, stdio, handover)
    arguments = arguments[1:] if arguments[:1] == ("--",) else arguments
    return _run(connection, session, kernel, arguments, refresh=refresh)


@asynchronous
async def _run(connection: Connection, session: str, kernel: str, arguments: tuple[str, ...], *, refresh: bool) -> int:
    """Provides for a shell, and runs a client unless it is only `refresh`."""
    program = shutil.which("ssh")
    if program is None:
        raise UsageError("the program ssh is missing: install OpenSSH's client")
    async with connection.client() as client:
        found = await client.sessions.get(session)
        await found.wait("RUNNING")
        access = await ssh_access.provide_shell(found, ssh_blocks.directory(), kernel)
    if refresh:
        return ExitCode.OK
    proxy = ssh_blocks.shell_proxy(connection, found.id, kernel, access.home)
    options = [word for item in {**access.settings, **proxy}.items() for word in ("-o", "=".join(item))]
    count = next((place for place, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
    # An option's value follows it, as in `-L 1:host:2`.
    while 0 < count < len(arguments) and arguments[count - 1] in _WITH_VALUE:
        count += 1
        while count < len(arguments) and arguments[count].startswith("-"):
            count += 1
    command = [program, *options, *arguments[:count], access.host, *arguments[count:]]
    environment = os.environ | connection.settings().environment()
    return client_program.become(command, environment)


_WITH_VALUE = frozenset(f"-{letter}" for letter in "BbcDEeFIiJLlmOopQRSWw")


@asynchronous
async def _carry(
    connection: Connection, session: str, kernel: str, home: str, handover: ssh_socket.SocketHandover | None
) -> int:
    """Starts a server, and carries standard input and output to it, or gives away a socket that leads there.
    It ends with this.
    """
    port = random.choice(_PORTS)  # noqa: S311  # only to be free
    async with contextlib.AsyncExitStack() as stack:
        if handover is not None:
            stack.enter_context(handover.client_waits())
        client = await stack.enter_async_context(connection.client())
        # As with any ssh server, what users leave running (tmux, `nohup`, an IDE's own server) outlives it.
        command = ssh_access.server_command(home, port)
        # With `-e`, the server passes its variables on.
        colours = {name: value for name, value in terminal.kind().items() if name == terminal.COLOURS}
        server = client.sessions.attach(session, command, kernel, environment=colours, keep_processes=True)
        async with server:
            words = bytearray()
            reading = asyncio.create_task(_read_words(server, words))
            until = time.monotonic() + _START_SECONDS
            try:
                while True:
                    try:
                        direct = handover is not None
                        async with client.sessions.open_port(session, f"ssh:{port}", kernel, direct=direct) as remote:
                            if handover is None:
                                await carry_pipes(sys.stdin.fileno(), sys.stdout.fileno(), remote)
                            else:
                                await ssh_socket.lead(remote, handover, connection.settings().endpoint)
                            return ExitCode.OK
                    except CallError as error:
                        if error.reason != "PORT_CLOSED" or time.monotonic() > until or reading.done():
                            sys.stderr.buffer.write(words)
                            sys.stderr.buffer.flush()
                            raise
                    await asyncio.sleep(_PAUSE_SECONDS)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
    return ExitCode.OK


async def _read_words(server: Attachment, words: bytearray) -> None:
    """Collects what the server prints: it says something of every connection,
    and only matters when none can be opened.
    """
    async for piece in server:
        if len(words) < _WORDS_LIMIT:
            words.extend(piece.data)
