"""`retinue exec`: without and with a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.eventually import NEVER, eventually
from tests.support.forked_programs import PROGRAM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def name(client: Client) -> AsyncIterator[str]:
    session = await client.sessions.create(
        type="interactive", name="for-exec", cluster_size=2, slots={"cpu": "0.5", "mem": "64m"}, termination_grace=0
    )
    await session.wait("RUNNING", timeout=NEVER)
    yield session.name
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


async def test_streams_and_codes(retinue: Program, name: str) -> None:
    ran = await retinue("exec", "-w", "/tmp", name, "-k", "sub1", "-e", "A=b c", "--", "sh", "-c", 'hostname; pwd; echo "$A" >&2; exit 3')  # noqa: S108  # fmt: skip
    assert (ran.code, ran.out, ran.err) == (3, "sub1\n/tmp\n", "b c\n")
    assert (await retinue("exec", name, "--", "cat")).code == 0, "without -i, there is no input"
    assert (await retinue("exec", name, "no-such-program", "-k")).code == 127
    missing = await retinue("exec", "no-such-session", "--", "true")
    assert (missing.code, missing.out) == (3, "")
    assert (await retinue("exec", "-k", "sub7", name, "--", "true")).code == 1


async def test_input_through_a_pipe(environment: dict[str, str], name: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "exec", "-i", name, "--", "sort"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    async with asyncio.timeout(NEVER):
        out, _ = await process.communicate(b"b\nc\na\n" * 20_000)
    assert process.returncode == 0
    assert out == b"a\n" * 20_000 + b"b\n" * 20_000 + b"c\n" * 20_000


async def test_a_detached_command_outlives_its_call(retinue: Program, name: str) -> None:
    assert (await retinue("exec", "-d", name, "--", "sh", "-c", "sleep 1000 & echo $! >number; wait")).code == 0
    alive = ("exec", name, "--", "sh", "-c", 'kill -0 "$(cat number)"')
    await eventually(lambda: _ends_well(retinue, *alive))
    missing = await retinue("exec", "-d", name, "--", "no-such-program")
    assert (missing.code, missing.out) == (127, "")
    assert "no-such-program: No such file" in missing.err
    assert "has neither -i nor -t" in (await retinue("exec", "-dt", name, "--", "true")).err


async def _ends_well(retinue: Program, *command: str) -> bool:
    return (await retinue(*command)).code == 0


async def test_what_is_left_running_over_ssh_is_found_again(retinue: Program, name: str) -> None:
    """As tmux, `nohup` and the servers of IDEs need it; `exec` without a terminal cleans up."""
    background = "setsid nohup sleep 1000 >/dev/null 2>&1 & echo $!"
    cleaned = (await retinue("exec", name, "--", "sh", "-c", background)).out.strip()
    kept = (await retinue("ssh", name, background)).out.strip()
    assert (await retinue("ssh", name, "tmux new-session -d -s work 'echo $$ >pane; exec sleep 1000'")).code == 0
    alive = f"kill -0 {kept} && kill -0 $(cat pane) && tmux has-session -t work"
    await eventually(lambda: _ends_well(retinue, "ssh", name, alive))
    assert not await _ends_well(retinue, "exec", name, "--", "kill", "-0", cleaned)
    # A connection that breaks while a client of tmux is on its terminal.
    broken = await retinue.start("ssh", name, "--", "-tt", "tmux", "attach", "-t", "work", TERM="xterm")
    await eventually(lambda: _ends_well(retinue, "exec", name, "--", "sh", "-c", "tmux list-clients | grep -q work"))
    broken.kill()
    await broken.wait()
    await eventually(lambda: _ends_well(retinue, "exec", name, "--", "sh", "-c", "! tmux list-clients | grep -q work"))
    assert (await retinue("ssh", name, alive)).code == 0
    assert (await retinue("ssh", name, f"tmux kill-server; kill {kept}")).code == 0


async def test_rsync_goes_by_ssh(environment: dict[str, str], retinue: Program, name: str, tmp_path: Path) -> None:
    (tmp_path / "sent").write_text("text")
    process = await asyncio.create_subprocess_exec(
        *("rsync", "-a", "-e", f"{PROGRAM} ssh", f"{tmp_path}/sent", f"{name}:received"), env=environment
    )
    async with asyncio.timeout(NEVER):
        assert await process.wait() == 0
    assert (await retinue("exec", name, "--", "cat", "received")).out == "text"


async def test_an_interrupt_is_the_commands(retinue: Program, name: str) -> None:
    process = await retinue.start(
        "exec", name, "--", "sh", "-c", "trap 'exit 9' INT; echo on; while :; do sleep 0.05; done"
    )
    assert process.stdout is not None
    async with asyncio.timeout(NEVER):
        assert await process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 9


async def test_a_shell_on_this_terminal(environment: dict[str, str], name: str) -> None:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 71, 0, 0))
    before = termios.tcgetattr(side)
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "exec", name),
        stdin=side,
        stdout=side,
        stderr=side,
        # The terminal knows its size better.
        env={**environment, "TERM": "xterm", "LINES": "11", "COLUMNS": "51"},
        start_new_session=True,
    )
    seen = b""

    async def until(text: bytes) -> None:
        nonlocal seen

        def read() -> bytes:
            nonlocal seen
            with suppress(BlockingIOError):
                seen += os.read(main, 65536)
            return seen

        await eventually(read, lambda found: text in found)
        seen = b""

    os.set_blocking(main, False)
    try:
        # What is typed before it is handed over is handed over too.
        os.write(main, b"stty size; echo $TERM\n")
        await until(b"31 71\r\nxterm")
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 81, 0, 0))
        process.send_signal(signal.SIGWINCH)
        # It comes when it comes.
        os.write(main, b"until stty size | grep '41'\\ '81'; do sleep 0.1; done\n")
        await until(b"41 81")
        # What prints it is what the key interrupts: the terminal is in its foreground by then.
        os.write(main, b"sh -c \"echo 'fir''st'; exec sleep 1000\"\n")
        await until(b"first")
        # A key like any other, until it is there.
        os.write(main, b"\x03")
        os.write(main, b"echo 'al''ive'; exit 4\n")
        await until(b"alive")
        async with asyncio.timeout(NEVER):
            assert await process.wait() == 4
        assert termios.tcgetattr(side) == before
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(main)
        os.close(side)
