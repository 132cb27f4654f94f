"""System sessions for tests, with the configuration by which OpenSSH's clients reach them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.kernel.paths import FILES
from retinue.manager.session.core.ssh_authority import principal
from tests.integration.client.command.conftest import SECONDS, Outcome, Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.client.client import Client


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
            async with asyncio.timeout(SECONDS):
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
    memory: str = "256m",
    keys: Sequence[str] = (),
) -> Clients:
    session = await client.sessions.create(
        type="system",
        name=name,
        mounts=[(str(source), "/data", writable)],
        max_file_bytes=max_file_bytes,
        authorized_keys=keys,
        slots={"cpu": "0.5", "mem": memory},
    )
    await session.wait("RUNNING", timeout=SECONDS)
    ran = await files("ssh-config", name)
    assert ran.code == 0, ran.err
    config = source.parent / f"{name}.config"
    config.write_text(ran.out)
    return Clients(files, config, f"{name}.retinue")


def listener(session_id: str) -> int:
    """Returns the process of the server of a session; other clusters of the machine may have others."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            principals = (entry / f"root{FILES}/principals").read_text()
            if principals.strip() == principal(uuid.UUID(session_id)) and (entry / "comm").read_text() == "sshd\n":
                return int(entry.name)
    raise RuntimeError("there is no server")


def companions(session_id: str) -> set[int]:
    """Returns the processes that stay beside connections to a session."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if b"--pass-socket" in words and session_id.encode() in words:
                found.add(int(entry.parent.name))
    return found
