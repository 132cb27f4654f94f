"""`retinue sftp`, `retinue sftp-mount` and `retinue ssh-config`: clients on the files that a system session serves."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.client.command.inside import client_program, sftp_listener, ssh_access, ssh_blocks
from retinue.client.command.shell import completed_names
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.errors import UsageError
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.client.sessions import Session

_PROVIDED_AT_A_TIME = 16


@click.command("sftp", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-k", "--kernel", default="", help="Hostname of the kernel, whose node's directories are meant.  [default: main1]"
)
@click.option(
    "--listen",
    default="",
    metavar="[ADDRESS:]PORT",
    help="Listen at this port for other clients, such as FileZilla and WinSCP; start none.",
)
@click.argument("target", default="", metavar="[SESSION[:PATH]]", shell_complete=completed_names.sessions)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_connection
@asynchronous
async def sftp_command(
    connection: Connection, *, kernel: str, listen: str, target: str, arguments: tuple[str, ...]
) -> int:
    """Open the files that a system session serves with OpenSSH's `sftp`, which gets the ARGUMENTS,
    and end with its exit code.

    Without SESSION, open your only system session. You need to register no key: the manager certifies a key of this
    program for an hour.

    \b
      retinue run --type system -n files --mount /srv/data:/data:rw
      retinue sftp files
      retinue sftp files:/data/results.csv
      retinue sftp files -- -b commands.txt
      retinue sftp --listen 2222 files
    """
    if listen:
        return await _listen(connection, listen, kernel, target, arguments)
    program = shutil.which("sftp")
    if program is None:
        raise UsageError("the program sftp is missing: install OpenSSH's client")
    name, _, path = target.partition(":")
    arguments = arguments[1:] if arguments[:1] == ("--",) else arguments
    async with connection.client() as client:
        session = await _found(client, name)
        access = await ssh_access.certify(session, ssh_blocks.directory())
    settings = {
        **access.settings,
        **ssh_blocks.sftp_proxy(connection, session.id, kernel),
        "ControlPath": "none",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    destination = f"{ssh_access.USER}@{access.host}{f':{path}' if path else ''}"
    environment = os.environ | connection.settings().environment()
    # Signals are the client's, which says what they mean.
    return client_program.become([program, *options, *arguments, destination], environment)


async def _listen(connection: Connection, where: str, kernel: str, target: str, arguments: tuple[str, ...]) -> int:
    """Listens for clients until the session ends; returns the exit code."""
    if ":" in target or arguments:
        raise UsageError("--listen takes only SESSION: clients choose the files that they open")
    async with connection.client() as client:
        session = await _found(client, target)
        key = await ssh_access.host_key(session, ssh_blocks.directory())
        await sftp_listener.listen(session, connection.settings().endpoint, kernel, where, key)
    return ExitCode.OK


@click.command("sftp-mount", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-k", "--kernel", default="", help="Hostname of the kernel, whose node's directories are meant.  [default: main1]"
)
@click.argument("target", metavar="SESSION[:PATH]", shell_complete=completed_names.sessions)
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_connection
@asynchronous
async def sftp_mount_command(
    connection: Connection, *, kernel: str, target: str, directory: str, arguments: tuple[str, ...]
) -> int:
    """Mount the files that a system session serves at a directory of this machine by `sshfs`, which gets the ARGUMENTS.

    The mount reconnects as long as the session runs. To unmount it, run `fusermount3 -u DIRECTORY`.

    \b
      retinue sftp-mount files ~/files
      retinue sftp-mount files:/data ~/data -- -o ro
    """
    program = shutil.which("sshfs")
    if program is None:
        raise UsageError("the program sshfs is missing")
    name, _, path = target.partition(":")
    arguments = arguments[1:] if arguments[:1] == ("--",) else arguments
    async with connection.client() as client:
        session = await _found(client, name)
        access, again = await _sftp_access(connection, session)
    proxy = ssh_blocks.sftp_proxy(connection, session.id, kernel)
    # It stays, as connections are made long after this program has ended.
    config = ssh_blocks.directory() / f"{session.id}{f'-{kernel}' if kernel else ''}.config"
    host = ssh_blocks.Host((session.name,), again, {**access.settings, **proxy})
    config.write_text(ssh_blocks.blocks(session.name, [host]))
    options = ["-F", str(config), "-o", "reconnect", *arguments]
    command = [program, *options, f"{ssh_access.USER}@{session.name}.retinue:{path}", directory]
    environment = os.environ | connection.settings().environment()
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: ASYNC221, S603


async def _sftp_access(connection: Connection, session: Session) -> tuple[ssh_access.SshAccess, str]:
    """Returns the access to a system session, and the command that sees to its certificate
    whenever a client connects.
    """
    access = await ssh_access.certify(session, ssh_blocks.directory())
    again = ssh_blocks.command(connection, "ssh-config", "--refresh", session.id)
    # A certificate is good for an hour; this program takes longer to start than to look at a file.
    certificate = shlex.quote(access.settings["CertificateFile"])
    return access, f"find {certificate} -mmin -50 2>/dev/null | grep -q . || {again}"


@click.command("ssh-config")
@click.option("--refresh", is_flag=True, hidden=True, help="Only renew the certificate: for `Match exec` of the block.")
@click.option("--write", is_flag=True, help="Put the block where ~/.ssh/config includes it, instead of printing it.")
@click.argument("session", default="", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def ssh_config_command(connection: Connection, *, session: str, refresh: bool, write: bool) -> None:
    """Print blocks for ~/.ssh/config by which OpenSSH's clients reach the kernels of a session by name: `sftp`, `scp`,
    `rsync` and `sshfs` those of a system session, and these, `ssh`, Ansible and IDEs those of any other.

    The host SESSION.retinue is main1, sub1.SESSION.retinue is sub1, and so on. Certificates are renewed whenever a
    client connects.

    \b
      retinue ssh-config files --write
      scp results.csv files.retinue:
      rsync -a data/ sub1.training.retinue:data/
    """
    async with connection.client() as client:
        found = await _found(client, session)
        if found.view.spec.type == session_pb2.SESSION_TYPE_SYSTEM:
            access, again = await _sftp_access(connection, found)
            if refresh:
                return
            hosts = _sftp_hosts(connection, found, access, again)
        else:
            hosts = await _shell_hosts(connection, found)
    block = ssh_blocks.blocks(found.name, hosts)
    if not write:
        click.echo(block, nl=False)
        return
    path = ssh_blocks.directory() / "config"
    others = ssh_blocks.without(path.read_text() if path.exists() else "", found.name)
    path.write_text(f"{others}{block}")
    names = [f"{safe(host.names[0])}.retinue" for host in hosts]
    click.echo(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} in {path}", err=True)
    own = Path.home() / ".ssh" / "config"
    line = f"Include {path}\n"
    before = own.read_text() if own.exists() else ""
    if line not in before:
        own.parent.mkdir(mode=0o700, exist_ok=True)
        # First: what comes after a Host line would belong to it.
        own.write_text(f"{line}{before}")
        own.chmod(0o600)


def _sftp_hosts(
    connection: Connection, session: Session, access: ssh_access.SshAccess, again: str
) -> list[ssh_blocks.Host]:
    """Returns the hosts of a system session: each of its kernels serves the directories of its own node."""
    return [
        ssh_blocks.Host(
            _names(session, kernel),
            again,
            {**access.settings, **ssh_blocks.sftp_proxy(connection, session.id, kernel)},
        )
        for kernel in _kernels(session)
    ]


async def _shell_hosts(connection: Connection, session: Session) -> list[ssh_blocks.Host]:
    """Returns the hosts of a session with shells, once this machine's key is let in to all of them."""
    few = asyncio.Semaphore(_PROVIDED_AT_A_TIME)

    async def host(kernel: str) -> ssh_blocks.Host:
        async with few:
            access = await ssh_access.provide_shell(session, ssh_blocks.directory(), kernel)
        words = ("ssh", "--refresh", *(("--kernel", kernel) if kernel else ()), session.id)
        proxy = ssh_blocks.shell_proxy(connection, session.id, kernel, access.home, jumps=bool(kernel))
        return ssh_blocks.Host(
            _names(session, kernel), ssh_blocks.command(connection, *words), {**access.settings, **proxy}
        )

    return await asyncio.gather(*(host(kernel) for kernel in _kernels(session)))


def _kernels(session: Session) -> list[str]:
    """Returns the hostnames of the kernels that run; that of the first is empty, which is what commands mean by
    nothing.
    """
    running = session_pb2.KERNEL_STATE_RUNNING
    return ["", *(kernel.hostname for kernel in session.kernels[1:] if kernel.state == running)]


def _names(session: Session, kernel: str) -> tuple[str, ...]:
    """Returns what a kernel's host is called: the first kernel by the session's own name too."""
    if kernel:
        return (f"{kernel}.{session.name}",)
    return (session.name, *(f"{first.hostname}.{session.name}" for first in session.kernels[:1]))


async def _found(client: Client, name: str) -> Session:
    """Returns a session once it runs. Raises UsageError, CallError."""
    if name:
        session = await client.sessions.get(name)
    else:
        mine = f'type = "SYSTEM" AND owner = "{(await client.users.caller()).name}"'
        sessions = [session async for session in client.sessions.list(filter=mine, limit=2)]
        if len(sessions) != 1:
            raise UsageError(
                "which system session? Name one of yours"
                if sessions
                else "you have no system session: retinue run --type system --mount SRC:DST"
            )
        session = sessions[0]
    await session.wait("RUNNING")
    return session
