"""What OpenSSH's clients need to reach the SFTP servers of a system session: a key, a certificate of it,
and whom to trust.

It lies in one directory that only its owner can read. The key is made once and is worth nothing by itself;
certificates are good for an hour.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.client.sessions import Session

PORT = "sftp"
USER = "work"
SERVER = "/run/kernel/bin/dropbear"
"""Where the agent puts the server, once it is asked for."""
HOST_KEY = ".ssh/retinue_host_key"
SESSION_PORT = 2200
"""Where the kernels of a cluster session serve each other."""
_TYPE = b"ssh-ed25519"
_PROVIDE = """
cd "$HOME" && umask 077 && mkdir -p .ssh && touch .ssh/authorized_keys || exit
grep -qxF "$SSH_KEY" .ssh/authorized_keys 2>/dev/null || printf '%s\\n' "$SSH_KEY" >>.ssh/authorized_keys
printf %b "$SSH_HOST_KEY" >.ssh/retinue_host_key.$$ && mv .ssh/retinue_host_key.$$ .ssh/retinue_host_key && id -un && pwd || exit
{ read -r host key </run/kernel/ssh/known_hosts; } 2>/dev/null && printf '%s\\n' "$key"
exit 0
"""
# A kernel may print anything, and this goes into configurations: neither a line of its own nor a token.
_PROVIDED = re.compile(
    r"(?P<user>[A-Za-z0-9_.][A-Za-z0-9_.$@+-]*)\n(?P<home>/[^\x00-\x1f\x7f]*)\n(?:(?P<key>ssh-ed25519 [A-Za-z0-9+/=]+)\n)?"
)


@dataclass(frozen=True, slots=True)
class SshAccess:
    """The access to one session: settings of OpenSSH's clients by name, how its host is called,
    and the home of its user in a kernel.
    """

    host: str
    settings: Mapping[str, str]
    home: str = ""


async def certify(session: Session, directory: Path) -> SshAccess:
    """Gets a certificate for a session, and writes what clients need into the directory.
    Raises CallError, UsageError, OSError.
    """
    key = await _key(directory)
    made = await session.create_ssh_certificate(key.with_suffix(".pub").read_text())
    certificate, known_hosts = directory / f"{session.id}-cert.pub", directory / f"{session.id}.hosts"
    _write(certificate, f"{made.certificate}\n")
    _write(known_hosts, f"{made.known_hosts}\n")
    settings = {
        "HostName": made.host_name,
        "HostKeyAlias": made.host_name,
        "User": USER,
        "IdentityFile": str(key),
        "CertificateFile": str(certificate),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "PreferredAuthentications": "publickey",
    }
    return SshAccess(made.host_name, settings)


async def host_key(session: Session, directory: Path) -> str:
    """Returns type and key that the servers of a session show to clients that know no certificates.
    Raises CallError, UsageError, OSError.
    """
    key = await _key(directory)
    return (await session.create_ssh_certificate(key.with_suffix(".pub").read_text())).host_key


async def _key(directory: Path, name: str = "id_ed25519") -> Path:
    """Returns the path of a private key; it is made when it is not there."""
    path = directory / name
    # Once, and on this machine: nothing else waits for it.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # noqa: ASYNC240
    if path.exists() and path.with_suffix(".pub").exists():
        return path
    with tempfile.TemporaryDirectory(dir=directory) as fresh:
        made = Path(fresh) / path.name
        command = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "retinue", "-f", str(made))
        try:
            process = await asyncio.create_subprocess_exec(*command)
        except FileNotFoundError:
            raise UsageError("the program ssh-keygen is missing: install OpenSSH's client") from None
        if await process.wait() != 0:
            raise UsageError("ssh-keygen cannot make a key")
        made.with_suffix(".pub").replace(path.with_suffix(".pub"))
        made.replace(path)
    return path


def _write(path: Path, text: str) -> None:
    """Replaces a file at once: another client may be reading it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(temporary).replace(path)


async def provide_shell(session: Session, directory: Path, hostname: str) -> SshAccess:
    """Lets this machine's key in to ssh servers of a kernel, and gives them a host key that only this machine trusts.

    Both lie in the home of the kernel's user: nothing but what the caller may do there by commands. A kernel of a
    cluster session is reached through another one too, by the server that its session has there.
    Raises CallError, UsageError, OSError.
    """
    key, host_key = await _key(directory), await _key(directory, "host_key")
    host_line = host_key.with_suffix(".pub").read_text().split()
    hosts = directory / "shells.hosts"
    _write(hosts, f"*.ssh.retinue {host_line[0]} {host_line[1]}\n")
    environment = {"SSH_KEY": key.with_suffix(".pub").read_text().strip(), "SSH_HOST_KEY": _escaped(host_key)}
    printed = b""
    async with session.attach(["/bin/sh", "-c", _PROVIDE], hostname, environment=environment) as attachment:
        await attachment.end_input()
        async for piece in attachment:
            printed += b"" if piece.errors else piece.data
    provided = _PROVIDED.fullmatch(printed.decode(errors="replace"))
    if attachment.exit_code or provided is None:
        raise UsageError(
            f"the home of the kernel's user cannot be prepared for ssh: sh ended with {attachment.exit_code}"
        )
    alias, known_hosts = f"{session.id}.ssh.retinue", str(hosts)
    reached = {"HostName": alias}
    if hostname and provided["key"]:
        own = directory / f"{session.id}.hosts"
        _write(own, f"{alias} {provided['key']}\n")
        reached = {"HostName": hostname, "Port": str(SESSION_PORT), "HostKeyAlias": alias}
        known_hosts = f"{known_hosts} {own}"
    settings = {
        **reached,
        "User": provided["user"],
        "IdentityFile": str(key),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "PreferredAuthentications": "publickey",
    }
    return SshAccess(alias, settings, provided["home"])


def server_command(home: str, port: int) -> list[str]:
    """Returns the argument vector of an ssh server in a kernel whose user has that home, at a port of the loopback."""
    # With `-e`, shells have the environment of the kernel's command.
    return [SERVER, "-F", "-e", "-m", "-K", "60", "-r", f"{home}/{HOST_KEY}", "-p", f"127.0.0.1:{port}"]


def _escaped(key: Path) -> str:
    """Returns a private Ed25519 key of OpenSSH as Dropbear stores it, for `printf %b`."""
    text = "".join(line for line in key.read_text().splitlines() if not line.startswith("-"))
    content = base64.b64decode(text)
    # The type, and the private half, which holds the public one: the last two of these in the file.
    start = content.rindex(_TYPE) + len(_TYPE)
    size = int.from_bytes(content[start : start + 4])
    private = content[start + 4 + size :]
    private = private[4 : 4 + int.from_bytes(private[:4])]
    stored = len(_TYPE).to_bytes(4) + _TYPE + len(private).to_bytes(4) + private
    return "".join(f"\\0{byte:03o}" for byte in stored)
