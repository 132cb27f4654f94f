"""`retinue code`: files, and a conversation through a pipe and on a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.agent.kernel.python_runtime import build_runtime
from tests.support.eventually import NEVER
from tests.support.forked_programs import PROGRAM
from tests.support.planted_modules import plant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOVE = "mv planted/*.py . && test -e numbers.py"
PLOT = """
import base64
from IPython.display import HTML, Image, display
dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
display(Image(data=base64.b64decode(dot), format="png")); display(HTML("<b>bold</b>"))
print("printed"); kept = 41
kept + 1
"""


@pytest_asyncio.fixture(loop_scope="session")
async def name(client: Client) -> AsyncIterator[str]:
    await asyncio.to_thread(build_runtime)
    session = await client.sessions.create(
        type="interactive", name="for-code", slots={"cpu": "1", "mem": "512m"}, termination_grace=0
    )
    await session.wait("RUNNING", timeout=NEVER)
    yield session.name
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


async def test_code_runs_where_files_have_the_names_of_modules(retinue: Program, name: str, tmp_path: Path) -> None:
    planted = plant(tmp_path / "planted")
    (planted / "own.py").write_text("answer = 42\n")
    copied = await retinue("cp", "-r", str(planted), f"{name}:")
    assert copied.code == 0, copied.err
    moved = await retinue("exec", name, "--", "sh", "-c", MOVE)
    assert moved.code == 0, moved.err
    (tmp_path / "code.py").write_text("import json, own; print(json.dumps(own.answer))")
    ran = await retinue("code", "run", str(tmp_path / "code.py"), name)
    assert (ran.code, ran.out) == (0, "42\n"), ran.err


async def test_files_and_conversations(
    retinue: Program, environment: dict[str, str], name: str, tmp_path: Path, owner: str
) -> None:
    (tmp_path / "plot.py").write_text(PLOT)
    ran = await retinue("code", "run", "--save-dir", str(tmp_path / "out"), str(tmp_path / "plot.py"), name)
    assert ran.code == 0, ran.err
    assert "printed\n42\n" in ran.out
    assert (tmp_path / "out/retinue-1.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert (tmp_path / "out/retinue-1.html").read_text() == "<b>bold</b>"

    (tmp_path / "bad.py").write_text("kept / 0")
    ran = await retinue("code", "run", str(tmp_path / "bad.py"), name)
    assert (ran.code, ran.out) == (1, "")
    assert "ZeroDivisionError" in ran.err
    assert "\x1b" not in ran.err

    (tmp_path / "x.cobol").write_text("x")
    ran = await retinue("code", "run", "-l", "cobol", str(tmp_path / "x.cobol"), name)
    assert ran.code == 1
    assert "kernel.json" in ran.err
    ran = await retinue("code", "run", str(tmp_path / "bad.py"), name, RETINUE_TOKEN=owner)
    assert ran.code == 3, "others do not even see that there is such a session"

    endless = await asyncio.create_subprocess_exec(
        *(PROGRAM, "code", "run", "-", name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert endless.stdin is not None
    assert endless.stdout is not None
    endless.stdin.write(b"print('on', flush=True)\nwhile True: pass")
    endless.stdin.close()
    async with asyncio.timeout(NEVER):
        assert await endless.stdout.readline() == b"on\n"
        ran = await retinue("code", "interrupt", name)
        assert (ran.code, ran.err) == (0, "")
        assert await endless.wait() == 130, "as of a command that Ctrl-C has ended"

    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "code", name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    async with asyncio.timeout(NEVER):
        out, _ = await process.communicate(b"def f(x):\n    return x + kept\n\nf(1)\nprint(f(2))\n")
    assert (process.returncode, out) == (0, b"42\n43\n")


async def test_a_terminal(environment: dict[str, str], name: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *("setsid", "--ctty", "--wait", PROGRAM, "code", name),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"},
    )
    os.close(theirs)
    seen = bytearray()

    async def until(text: bytes) -> None:
        while text not in seen:
            piece = await asyncio.to_thread(os.read, ours, 4096)
            assert piece, seen
            seen.extend(piece)
        del seen[: seen.index(text) + len(text)]

    try:
        async with asyncio.timeout(NEVER):
            await until(b">>> ")
            os.write(ours, b"not this \x03")
            await until(b"KeyboardInterrupt")
            await until(b">>> ")
            os.write(ours, b"a_long_name = 6\n")
            await until(b">>> ")
            os.write(ours, b"a_long_na\t * 7\n")
            await until(b"\n42")
            await until(b">>> ")
            os.write(ours, b"import time; print('be' + 'gun'); time.sleep(1000)\n")
            await until(b"begun")
            os.write(ours, b"\x03")
            await until(b"KeyboardInterrupt")
            await until(b">>> ")
            os.write(ours, b"input('who? ')\n")
            await until(b"\nwho? ")
            os.write(ours, b"me\n")
            await until(b"'me'")
            await until(b">>> ")
            os.write(ours, b"\x04")
            assert await process.wait() == 0
    except TimeoutError:
        raise AssertionError(bytes(seen)) from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(ours)
    assert "a_long_name = 6" in (tmp_path / "retinue/code-history").read_text()
