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
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from retinue.devtools.cluster import Cluster
from tests.support.eventually import NEVER, eventually

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
