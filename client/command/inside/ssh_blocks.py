"""Blocks of OpenSSH's configuration by which its clients reach a session by name, and what connects them."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.client.command.inside import ssh_access, ssh_socket
from retinue.client.settings import ssh_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retinue.client.command.shell.connection import Connection


def directory() -> Path:
    """Returns where keys and certificates are."""
    return ssh_directory(os.environ)


def sftp_proxy(connection: Connection, session_id: str, kernel: str) -> dict[str, str]:
    """Returns the settings by which OpenSSH's clients connect to a system session."""
    return _proxy(connection, "port-forward", "--stdio", *_kernel(kernel), session_id, ssh_access.PORT)


def shell_proxy(
    connection: Connection, session_id: str, kernel: str, home: str, *, jumps: bool = False
) -> dict[str, str]:
    """Returns the settings by which OpenSSH's clients connect to a shell in a kernel whose user has that home.

    With `jumps`, a client may come through another host as well: one that is given a socket cannot.
    """
    words = ("ssh", "--stdio", home, *_kernel(kernel), session_id)
    return {"ProxyCommand": command(connection, *words)} if jumps else _proxy(connection, *words)


def _proxy(connection: Connection, name: str, *words: str) -> dict[str, str]:
    if not ssh_socket.SUPPORTED:
        return {"ProxyCommand": command(connection, name, *words)}
    return {"ProxyCommand": command(connection, name, "--pass-socket", *words), "ProxyUseFdpass": "yes"}


def _kernel(kernel: str) -> tuple[str, ...]:
    return ("--kernel", kernel) if kernel else ()


def command(connection: Connection, *words: str) -> str:
    """Returns a command line of this program for ssh, with the same context."""
    program = os.fspath(Path(sys.argv[0]).absolute()) if Path(sys.argv[0]).exists() else "retinue"
    context = ("--context", connection.context) if connection.context else ()
    return shlex.join((program, *context, *words)).replace("%", "%%")


@dataclass(frozen=True, slots=True)
class Host:
    """A host of a configuration, by its names without `.retinue`; `refresh` is run whenever a client connects."""

    names: tuple[str, ...]
    refresh: str
    settings: Mapping[str, str]


def blocks(name: str, hosts: Iterable[Host]) -> str:
    """Returns the blocks of a session's hosts, between lines that `without` finds them by."""
    lines = [f"# retinue {name}"]
    for host in hosts:
        names = ",".join(f"{each}.retinue" for each in host.names)
        lines.append(f'Match originalhost {names} exec "{host.refresh}"')
        lines += [f"    {key} {value}" for key, value in host.settings.items()]
    return "\n".join((*lines, f"# end {name}", ""))


def without(text: str, name: str) -> str:
    """Returns blocks but those of a session."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        inside = inside or line == f"# retinue {name}\n"
        if not inside:
            kept.append(line)
        inside = inside and line != f"# end {name}\n"
    return "".join(kept)
