"""Blocks of OpenSSH's configuration by which its clients reach a session by name, and what connects them."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.client import ssh_access
from retinue.client.command import ssh_socket
from retinue.client.settings import ssh_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.client.command.connection import Connection


def directory() -> Path:
    """Returns where keys and certificates are."""
    return ssh_directory(os.environ)


def sftp_proxy(connection: Connection, session_id: str, kernel: str) -> dict[str, str]:
    """Returns the settings by which OpenSSH's clients connect to a system session."""
    return _proxy(connection, "port-forward", "--stdio", *_kernel(kernel), session_id, ssh_access.PORT)


def shell_proxy(connection: Connection, session_id: str, kernel: str, home: str) -> dict[str, str]:
    """Returns the settings by which OpenSSH's clients connect to a shell in a kernel whose user has that home."""
    return _proxy(connection, "ssh", "--stdio", home, *_kernel(kernel), session_id)


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


def block(name: str, refresh: str, settings: Mapping[str, str]) -> str:
    """Returns the block of the host NAME.retinue; `refresh` is run whenever a client connects."""
    lines = [f"# retinue {name}", f'Match originalhost {name}.retinue exec "{refresh}"']
    return "\n".join((*lines, *(f"    {key} {value}" for key, value in settings.items()), f"# end {name}", ""))


def without(text: str, name: str) -> str:
    """Returns blocks but that of a session."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        inside = inside or line == f"# retinue {name}\n"
        if not inside:
            kept.append(line)
        inside = inside and line != f"# end {name}\n"
    return "".join(kept)
