"""`retinue run -i` and `-it`, and `retinue attach`: sessions that last as long as a command at a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.client.command.conftest import Program, line_with
from tests.support.eventually import NEVER, eventually
from tests.support.forked_programs import PROGRAM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

SMALL = ("--slots", "cpu=0.5,mem=64m", "--grace", "0")
ESTABLISHED = "01"


async def _found(client: Client, name: str) -> list[Session]:
    return [session async for session in client.sessions.list(filter=f'name = "{name}"', show_ended=True)]


async def _ended(client: Client, name: str) -> Session:
    # The newest: others of that name have ended.
    session = (await _found(client, name))[0]
    await session.wait_ended(NEVER)
    return session


class Terminal:
    """The program at a terminal, which controls it as a window does."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self.master = master
        self._seen = b""

    def _read(self) -> bytes:
        # At the end of the program, there is an error in place of an end.
        with suppress(OSError):
            self._seen += os.read(self.master, 65536)
        return self._seen

    async def shows(self, text: bytes) -> None:
        await eventually(self._read, lambda seen: text in seen)
        self._seen = self._seen.partition(text)[2]

    def types(self, text: bytes) -> None:
        os.write(self.master, text)

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
        self.master = -1

    async def ends(self) -> int:
        async with asyncio.timeout(NEVER):
            while self.process.returncode is None:
                # It cannot end while what it has printed is not taken.
                self._read()
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self.process.wait()), 0.05)
        return self.process.returncode


@asynccontextmanager
async def at_terminal(retinue: Program, *arguments: str) -> AsyncIterator[Terminal]:
    master, side = pty.openpty()
    os.set_blocking(master, False)
    try:
        process = await asyncio.create_subprocess_exec(
            # It opens its terminal once it is the first of a session: then that is its own.
            *("setsid", "--ctty", str(PROGRAM), *arguments),
            stdin=side,
            stdout=side,
            stderr=side,
            env={**retinue.environment, "TERM": "xterm"},
        )
    finally:
        os.close(side)
    terminal = Terminal(process, master)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        terminal.close()


async def _piped(retinue: Program, given: bytes, *arguments: str) -> tuple[int | None, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=retinue.environment,
    )
    async with asyncio.timeout(NEVER):
        out, err = await process.communicate(given)
    return process.returncode, out, err


async def test_a_shell_in_a_session_of_its_own(retinue: Program, client: Client) -> None:
    async with at_terminal(retinue, "run", "-it", "-n", "own-shell", *SMALL) as terminal:
        await terminal.shows(b"own-shell: ")
        terminal.types(b"test -t 0 && echo 'a ter''minal'; exit 4\n")
        await terminal.shows(b"a terminal")
        assert await terminal.ends() == 4
    assert (await _ended(client, "own-shell")).state == "TERMINATED"


async def test_input_through_a_pipe(retinue: Program, client: Client) -> None:
    script = "cat; echo bad >&2; exit 3"
    code, out, err = await _piped(
        retinue, b"given\n" * 20_000, "run", "-i", "-n", "piped", *SMALL, "--", "sh", "-c", script
    )
    assert (code, out) == (3, b"given\n" * 20_000)
    assert err.endswith(b"bad\n")
    await _ended(client, "piped")
    code, out, _ = await _piped(retinue, b"echo $((6 * 7))\n", "run", "-i", *SMALL)
    assert (code, out) == (0, b"42\n"), "without a command it is a shell"


async def test_a_session_is_kept_if_asked(retinue: Program, client: Client) -> None:
    code, out, _ = await _piped(retinue, b"", "run", "-i", "--keep", "-n", "kept", *SMALL, "--", "echo", "there")
    assert (code, out) == (0, b"there\n")
    assert (await client.sessions.get("kept")).state == "RUNNING"
    async with at_terminal(retinue, "attach", "kept") as terminal:
        terminal.types(b"hostname; exit 5\n")
        await terminal.shows(b"main1\r\n")
        assert await terminal.ends() == 5
    assert (await client.sessions.get("kept")).state == "RUNNING", "a shell's end ends nothing else"


async def test_an_interrupt_while_it_waits_ends_the_session(retinue: Program, client: Client) -> None:
    async with at_terminal(retinue, "run", "-it", "-n", "waits", "--slots", "cpu=4000") as terminal:
        await terminal.shows(b"it waits until the cluster can hold it")
        terminal.types(b"\x03")
        await terminal.shows(b"ending session waits")
        assert await terminal.ends() == 130
    assert (await _ended(client, "waits")).state == "CANCELLED"


async def test_an_interrupt_before_the_answer_ends_what_was_made(
    retinue: Program, client: Client, cluster: Cluster
) -> None:
    cluster.manager.signal(signal.SIGSTOP)
    try:
        process = await retinue.start("run", "-i", "-n", "unanswered", *SMALL, "--", "cat")
        await eventually(lambda: _is_connected(process.pid, cluster))
        process.send_signal(signal.SIGINT)
        await line_with(process.stderr, "waiting for the manager's answer")
    finally:
        cluster.manager.signal(signal.SIGCONT)
    async with asyncio.timeout(NEVER):
        await process.communicate()
    assert process.returncode == 130
    await _ended(client, "unanswered")


async def test_a_terminal_that_is_closed_ends_the_session(retinue: Program, client: Client) -> None:
    async with at_terminal(retinue, "run", "-it", "-n", "closed", *SMALL) as terminal:
        terminal.types(b"echo 'al''ive'\n")
        await terminal.shows(b"alive")
        terminal.close()
        async with asyncio.timeout(NEVER):
            assert await terminal.process.wait() in {130, 1}
    await _ended(client, "closed")


async def test_an_interrupt_of_the_command_is_the_commands_and_the_second_ends_all(
    retinue: Program, client: Client
) -> None:
    process = await retinue.start(
        *("run", "-i", "-n", "deaf", *SMALL, "--"),
        *("sh", "-c", "trap 'echo heard' INT; echo on; while :; do sleep 0.05; done"),
    )
    await line_with(process.stdout, "on")
    process.send_signal(signal.SIGINT)
    await line_with(process.stdout, "heard")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        await process.communicate()
    assert process.returncode == 130
    await _ended(client, "deaf")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-it", "--type", "batch", "--", "true"), "interactive sessions"),
        (("-it", "-d"), "--keep"),
        (("-t", "interactive", "-n", "x"), "--type interactive"),
        (("--keep", "--", "true"), "--keep needs -i or -t"),
    ],
)
async def test_wrong_usage(retinue: Program, arguments: tuple[str, ...], says: str) -> None:
    ran = await retinue("run", *arguments)
    assert ran.code == 2
    assert says in ran.err


def _is_connected(pid: int, cluster: Cluster) -> bool:
    """Returns whether the program has a connection to the manager: then its request is on the way."""
    port = int(cluster.settings.endpoint.rpartition(":")[2])
    with suppress(FileNotFoundError):
        sockets = set()
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                sockets.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
        for name in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in sockets and fields[3] == ESTABLISHED and int(fields[2].rpartition(":")[2], 16) == port:
                    return True
    return False
