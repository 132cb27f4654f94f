"""The client inside programs that fork, replace threads, or send errors to other processes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from retinue.devtools.cluster import Cluster

PROGRAMS = "tests.integration.client.programs"
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def environment(cluster: Cluster) -> dict[str, str]:
    settings = cluster.settings
    return {
        **os.environ,
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
    }


@contextlib.asynccontextmanager
async def running(command: Sequence[str], environment: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program in a process group of its own, which ends with it."""
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=ROOT, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def test_processes(environment: dict[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"{PROGRAMS}.processes", env=environment, cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), NEVER)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = json.loads(output)
    assert said["codes"] == [0] * 20
    assert "spawn" in said["refused"]
    assert said["inherited"] == "UsageError"
    assert said["spawned"] in {0, 1}


def _get(path: Path) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("localhost", timeout=NEVER)) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(NEVER)
        connection.sock.connect(str(path))
        connection.request("GET", "/")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize(
    ("options", "first", "status", "words"),
    [
        ((), "", 200, ""),
        (("--worker-class=gthread", "--threads=4"), "", 200, ""),
        (("--preload",), "", 200, ""),
        (("--preload",), "1", 500, "UsageError: this process was forked from one that had called a manager"),
        (("--worker-class=gevent",), "", 500, "UsageError: gevent has replaced this process's threads"),
    ],
    ids=["sync", "gthread", "preload", "called before the fork", "gevent"],
)
async def test_prefork_server(  # one line for each
    environment: dict[str, str],
    tmp_path: Path,
    options: tuple[str, ...],
    first: str,
    status: int,
    words: str,
) -> None:
    path = tmp_path / "web"
    command = [sys.executable, "-m", "gunicorn", "--workers=2", f"--bind=unix:{path}", "--timeout=0", *options]
    async with running([*command, f"{PROGRAMS}.web:app"], {**environment, "CALL_FIRST": first}):
        found = await eventually(lambda: asyncio.to_thread(_get, path), ignoring=OSError)
        assert (found[0], words in found[1]) == (status, True), found
        # All workers are as good.
        for _ in range(8):
            assert (await asyncio.to_thread(_get, path))[0] == status


async def test_task_queue(environment: dict[str, str], tmp_path: Path) -> None:
    for name in ("queue", "control", "results"):
        (tmp_path / name).mkdir()
    environment = {**environment, "TASKS": str(tmp_path), "C_FORCE_ROOT": "1"}
    ask = f"""
from {PROGRAMS} import tasks
from retinue.client import NotFound
assert tasks.count.delay().get(timeout={NEVER}) in (0, 1)
try:
    tasks.missing.delay().get(timeout={NEVER})
except NotFound as error:
    assert error.reason, vars(error)
    print("as it was raised")
"""
    command = [sys.executable, "-m", "celery", "-A", f"{PROGRAMS}.tasks", "worker", "--pool=prefork", "--concurrency=2"]
    async with running([*command, "--without-mingle", "--without-gossip", "--loglevel=ERROR"], environment):
        asking = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ask, env=environment, cwd=ROOT, stdout=subprocess.PIPE
        )
        try:
            output, _ = await asyncio.wait_for(asking.communicate(), NEVER)
        finally:
            if asking.returncode is None:
                asking.kill()
                await asking.wait()
    assert output == b"as it was raised\n"


@pytest.mark.parametrize("shape", ["fork", "forkserver", "spawn", "execute", "collect", "preexec", "loop"])
async def test_forks_beside_a_busy_client(environment: dict[str, str], shape: str) -> None:
    """Streams are open, a thread calls, and connections are made that fail, or are never answered."""
    count = 3 if shape == "spawn" else 10
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"{PROGRAMS}.forks", shape, str(count), env=environment, cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), NEVER)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert json.loads(output) == {"bad": [], "count": count, "ended": []}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def printing(cluster: Cluster) -> AsyncIterator[str]:
    """The id of a session whose output does not end."""
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive",
            command=["sh", "-c", "echo on; exec sleep infinity"],
            slots={"cpu": "0.5", "mem": "256m"},
            termination_grace=0,
        )
        try:
            await session.wait("RUNNING", timeout=NEVER)
            yield session.id
        finally:
            await session.terminate(force=True)
            await session.wait_ended(NEVER)


@pytest.mark.parametrize("form", ["blocking", "in a loop"])
@pytest.mark.parametrize(
    ("how", "number", "code", "last"),
    [
        ("end", None, 0, ""),
        ("exit", None, 3, ""),
        ("error", None, 1, "ValueError: of the program"),
        ("signal", signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
        ("signal", signal.SIGTERM, -signal.SIGTERM, ""),
    ],
    ids=["end", "exit", "error", "interrupt", "terminate"],
)
async def test_a_program_that_leaves_its_streams_open_ends(  # one line for each
    environment: dict[str, str],
    printing: str,
    form: str,
    how: str,
    number: signal.Signals | None,
    code: int,
    last: str,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"{PROGRAMS}.leaving", form, how, printing),
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(NEVER):
            if number is not None:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"open\n"
                process.send_signal(number)
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = errors.decode().splitlines()
    assert process.returncode == code, lines
    assert (lines or [""])[-1] == last
    # Of a loop that is interrupted, Python shows where its task was.
    expected = {"": 0, "KeyboardInterrupt": 1 if form == "blocking" else 2}.get(last, 1)
    assert sum(line.startswith("Traceback") for line in lines) == expected, lines
    assert not [line for line in lines if "ignored" in line or "destroyed" in line or line[:5] in {"E0000", "I0000"}]
