"""`retinue ssh` and `retinue sftp` that are ended at each step, by a signal to that one process:
nothing of them is left, here or in the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.kernel.paths import SERVER
from tests.faults.sftp_clients import PROGRAM, children, kill, paused, pid_of, printed, serving
from tests.integration.client.command.inside.sftp_sessions import listener
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def naming(session: Session) -> set[int]:
    """Returns the processes that have a session's id or name as a word, or a part of one, of their command."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes()
            if any(name.encode() in words for name in (session.id, session.name)):
                found.add(int(entry.parent.name))
    return found


@contextlib.asynccontextmanager
async def started(environment: dict[str, str], *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program, with an input that does not end."""
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, *command),
        env=environment,
        process_group=0,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        await kill(process)


async def say(process: asyncio.subprocess.Process, question: bytes, answer: bytes) -> None:
    """Returns once the other end has answered."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question)
    async with asyncio.timeout(NEVER):
        while answer not in (line := await process.stdout.readline()):
            assert line


def signalled(process: asyncio.subprocess.Process, number: int) -> bool:
    """Sends a signal, and returns whether the process had ended. The client ends the command that it runs first."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
    return process.returncode is not None


class Steps:
    """Ends a command at one step after the other, by each signal, and waits until nothing is left of it."""

    def __init__(self, session: Session, environment: dict[str, str], *command: str) -> None:
        self._session = session
        self._environment = environment
        self._command = command
        self._usual = naming(session)

    def programs(self) -> set[int]:
        """Returns the processes of the command, and of what it has started."""
        return naming(self._session) - self._usual

    async def end_at(self, reached: Callable[[asyncio.subprocess.Process], Awaitable[object]], *stopped: int) -> None:
        """Ends it where it is once `reached` returns, while some processes are stopped."""
        for number in SIGNALS:
            with paused(stopped):
                async with started(self._environment, *self._command) as process:
                    await reached(process)
                    await eventually(functools.partial(signalled, process, number))
            await eventually(lambda: not self.programs())

    async def runs(self, process: asyncio.subprocess.Process) -> None:
        await eventually(lambda: process.pid in self.programs())

    async def connects(self, _: asyncio.subprocess.Process) -> None:
        """Returns once the program that connects has been started, beside the client."""
        await eventually(lambda: len(self.programs()) > 2)


async def test_sftp(client: Client, cluster: Cluster, environment: dict[str, str], shared: Path) -> None:
    (shared / "is-here").touch()
    session = await serving(client, shared, "64m")
    server, nodes = await listener(session.id), [pid_of(agent.process) for agent in cluster.agents]
    steps = Steps(session, environment, "sftp", session.id)

    async def answered(process: asyncio.subprocess.Process) -> None:
        await say(process, b"ls -1\n", b"is-here")

    async def nothing_served() -> None:
        await eventually(lambda: not children(server))

    # Its first call, and those of the program that connects.
    await steps.end_at(steps.runs, pid_of(cluster.manager))
    for stopped in (nodes, [server]):
        await steps.end_at(steps.connects, *stopped)
        await nothing_served()
    await steps.end_at(answered)
    await nothing_served()
    # A server of this memory takes four connections at a time: none stays counted.
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await answered(await stack.enter_async_context(started(environment, "sftp", session.id)))
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


async def test_ssh(client: Client, cluster: Cluster, environment: dict[str, str]) -> None:
    session = await client.sessions.create(type="interactive", slots={"cpu": "0.5", "mem": "256m"})
    await session.wait("RUNNING", timeout=NEVER)
    steps = Steps(session, environment, "ssh", session.id, "cat")

    async def answered(process: asyncio.subprocess.Process) -> None:
        await say(process, b"there\n", b"there")

    async def nothing_served() -> bool:
        return SERVER.encode() not in await printed(
            environment, "exec", session.id, "--", "sh", "-c", "cat /proc/[0-9]*/comm"
        )

    await steps.end_at(steps.runs, pid_of(cluster.manager))
    await steps.end_at(steps.connects)
    await steps.end_at(answered)
    await eventually(nothing_served)
    await session.terminate(force=True)
    await session.wait_ended(NEVER)
