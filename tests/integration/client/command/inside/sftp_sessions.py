"""System sessions for tests, with the configuration by which OpenSSH's clients reach them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.kernel.paths import FILES
from retinue.manager.domain.session.ssh_authority import principal
from tests.support.eventually import NEVER, eventually
from tests.support.forked_programs import Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from retinue.client.client import Client
    from tests.integration.client.command.conftest import Program


MARKER = "is-here"


@dataclass(frozen=True, slots=True)
class Clients:
    """OpenSSH's clients with the configuration of one session, and the session's name for them."""

    program: Program
    config: Path
    host: str

    async def start(self, name: str, *arguments: str, text: str | None = None) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(name, "-F", str(self.config), *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.program.environment,
        )
        if text is not None and process.stdin is not None:
            process.stdin.write(text.encode())
        return process

    async def __call__(self, name: str, *arguments: str, text: str = "") -> Outcome:
        process = await self.start(name, *arguments)
        try:
            async with asyncio.timeout(NEVER):
                out, err = await process.communicate(text.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Outcome(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))

    async def batch(self, *commands: str) -> Outcome:
        """Runs commands of `sftp`, of which those that begin with `-` may fail."""
        return await self("sftp", "-b", "-", self.host, text="".join(f"{command}\n" for command in commands))


async def serve(
    client: Client,
    files: Program,
    source: Path,
    name: str,
    *,
    writable: bool = True,
    max_file_bytes: int = 0,
    umask: str = "",
    memory: str = "256m",
    keys: Sequence[str] = (),
) -> Clients:
    session = await client.sessions.create(
        type="system",
        name=name,
        mounts=[(str(source), "/data", writable)],
        max_file_bytes=max_file_bytes,
        umask=umask,
        authorized_keys=keys,
        slots={"cpu": "0.5", "mem": memory},
    )
    await session.wait("RUNNING", timeout=NEVER)
    ran = await files("ssh-config", name)
    assert ran.code == 0, ran.err
    config = source.parent / f"{name}.config"
    config.write_text(ran.out)
    return Clients(files, config, f"{name}.retinue")


async def listener(session_id: str) -> int:
    """Returns the process of the server of a session, once it is one: the session runs a little earlier."""
    return await eventually(lambda: _listener(session_id), bool)


def _listener(session_id: str) -> int:
    """Returns the process, and 0 for none; other clusters of the machine may have others."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            principals = (entry / f"root{FILES}/principals").read_text()
            if principals.strip() == principal(uuid.UUID(session_id)) and (entry / "comm").read_text() == "sshd\n":
                return int(entry.name)
    return 0


def companions(session_id: str) -> set[int]:
    """Returns the processes that stay beside connections to a session."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if b"--pass-socket" in words and session_id.encode() in words:
                found.add(int(entry.parent.name))
    return found


async def logged(client: Client, name: str) -> str:
    """Returns what the log of a session holds by now."""
    text = b""
    async for chunk in client.sessions.logs(name, follow=False):
        text += chunk.data
    return text.decode(errors="replace")


async def opened(clients: Clients, *options: str) -> asyncio.subprocess.Process:
    """Returns a connection that stands."""
    process = await clients.start("sftp", *options, clients.host)
    await answered(process)
    return process


@contextlib.asynccontextmanager
async def connected(clients: Clients, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client whose connection stands."""
    process = await opened(clients, *options)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def peers(sftp: asyncio.subprocess.Process) -> set[tuple[str, int]]:
    """Returns the other ends of the TCP connections of OpenSSH's client that this one has started."""
    children = Path(f"/proc/{sftp.pid}/task/{sftp.pid}/children").read_text().split()
    assert len(children) == 1, children
    links = []
    for entry in Path(f"/proc/{children[0]}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(entry))
    sockets = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    remote = [row[2].split(":") for row in rows if row[9] in sockets]
    return {(socket.inet_ntoa(int(address, 16).to_bytes(4, "little")), int(port, 16)) for address, port in remote}


@contextlib.asynccontextmanager
async def connected_to(
    clients: Clients, wanted: Callable[[set[tuple[str, int]]], bool], prepare: Callable[[], None] = lambda: None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client whose connection stands and has the peers that are wanted. On a machine that stands still for a second,
    a client takes another way, and for a minute after: it forgets that, is prepared again, and tries again.
    """
    async with asyncio.timeout(NEVER) as limit:
        while True:
            for silent in (clients.config.parent / "ssh").glob("silent-*"):
                silent.unlink()
            prepare()
            async with connected(clients) as process:
                if not wanted(peers(process)):
                    continue
                limit.reschedule(None)
                yield process
                return


async def answered(process: asyncio.subprocess.Process) -> None:
    """Returns once the server has listed a directory with the file MARKER."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"ls -1\n")
    async with asyncio.timeout(NEVER):
        while MARKER.encode() not in await process.stdout.readline():
            assert not process.stdout.at_eof(), await process.communicate()


async def direct_port(client: Client, name: str) -> tuple[str, int]:
    """Returns where the node of a session takes direct connections."""
    async with client.sessions.open_port(name, "sftp", direct=True) as connection:
        assert connection.direct_port is not None
        return connection.direct_port.host, connection.direct_port.port


async def relay_port(client: Client, name: str) -> tuple[str, int]:
    """Returns where the manager takes connections to a session."""
    async with client.sessions.open_port(name, "sftp", direct=True) as connection:
        assert connection.relay_port is not None
        return "127.0.0.1", connection.relay_port.port


@contextlib.contextmanager
def unreachable(places: Sequence[tuple[str, int]], verdict: str) -> Iterator[None]:
    """A firewall before addresses and ports, which drops what is sent there or answers that it is refused."""
    rules = "".join(f"ip daddr {address} tcp dport {port} {verdict}; " for address, port in places)
    chain = f"chain out {{ type filter hook output priority 0; {rules} }}"
    table = f"sftp-{secrets.token_hex(4)}"
    subprocess.run(["/usr/sbin/nft", "-f", "-"], check=True, text=True, input=f"table ip {table} {{\n{chain}\n}}\n")
    try:
        yield
    finally:
        subprocess.run(["/usr/sbin/nft", "delete", "table", "ip", table], check=True)
