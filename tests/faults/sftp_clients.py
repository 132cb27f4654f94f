"""Clients of the files and shells of sessions, as programs that are paused and killed; and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.process import ChildProcess

PROGRAM = str(Path(sys.executable).with_name("retinue"))


async def serving(client: Client, shared: Path, memory: str = "256m") -> Session:
    session = await client.sessions.create(
        type="system",
        mounts=[(str(shared), "/data", True)],
        slots={"cpu": "0.5", "mem": memory},
        termination_grace=0,
    )
    return await session.wait("RUNNING", timeout=NEVER)


async def start(
    environment: dict[str, str], session: Session, batch: Path, *options: str
) -> asyncio.subprocess.Process:
    return await launch(environment, PROGRAM, "sftp", session.id, *options, "-b", str(batch))


async def launch(environment: dict[str, str], *command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        # As a shell starts it: what a terminal sends reaches it and what it started, and nothing else.
        process_group=0,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def kill(process: asyncio.subprocess.Process) -> None:
    """Ends a program that runs."""
    if process.returncode is None:
        process.kill()
        await process.wait()


async def printed(environment: dict[str, str], *arguments: str) -> bytes:
    """Returns what the program prints."""
    process = await asyncio.create_subprocess_exec(PROGRAM, *arguments, env=environment, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(NEVER):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out


def pid_of(child: ChildProcess) -> int:
    """Returns the id of a process that runs."""
    assert child.pid is not None
    return child.pid


@contextlib.contextmanager
def paused(processes: Sequence[int]) -> Iterator[None]:
    """Has processes do nothing for as long as the block lasts; a negative number is a group."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def pipes(processes: Sequence[int]) -> int:
    """Returns how many ends of pipes processes have open."""
    found = 0
    for process in processes:
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink(entry).startswith("pipe:")
    return found


def children(process: int) -> list[str]:
    """Returns the processes that one has started and that run."""
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()
