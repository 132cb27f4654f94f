"""Clients of one's own for system sessions: keys, ports that lead to a server, and programs that are given those."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import paramiko

from retinue.client.kernel.port import LocalPort
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.client import Client

USER = "work"


async def run(*command: str | Path, **variables: str) -> tuple[int, str]:
    """Runs a program; returns its exit code and all that it printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(NEVER):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(errors="replace")


@asynccontextmanager
async def local_port(client: Client, name: str) -> AsyncIterator[tuple[str, int]]:
    """A port of this machine that leads to the server of a session."""
    session = await client.sessions.get(name)
    async with LocalPort(lambda: session.open_port("sftp")) as port:
        yield port.address


def public_key(directory: Path) -> str:
    """Makes a key in a directory; returns its public half."""
    subprocess.run(["/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / "key"], check=True)
    return (directory / "key.pub").read_text()


def as_user(address: tuple[str, int], key: paramiko.PKey, name: str | bytes) -> paramiko.Transport:
    """Logs in. Raises SSHException, EOFError."""
    transport = paramiko.Transport(address)
    try:
        transport.start_client(timeout=NEVER)
        transport.auth_publickey(name, key)  # type: ignore[arg-type]  # bytes are passed on as they are
    except BaseException:
        transport.close()
        raise
    return transport
