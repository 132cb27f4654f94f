"""What is said of a process of a local cluster that has ended."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from retinue.devtools import dev_command as dev
from retinue.devtools.dev_command import exit_notice
from retinue.devtools.process import ChildProcess, how_it_ended
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-11, "was killed by SIGSEGV (11)"),
        (-9, "was killed by SIGKILL (9)"),
        (-45, "was killed by a signal without a name (45)"),
    ],
)
def test_exit_statuses_in_words(status: int, words: str) -> None:
    assert how_it_ended(status) == words


async def ended(code: str, log: Path) -> ChildProcess:
    child = ChildProcess(
        "manager", [sys.executable, "-c", code], log, {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    )
    assert child.exit_report() == ""
    await child.start()
    assert await child.wait(NEVER)
    return child


async def test_the_last_lines_of_the_last_run(tmp_path: Path) -> None:
    log = tmp_path / "manager.log"
    log.write_text("a run before\n")
    child = await ended("import sys; [print(n) for n in range(50)]; sys.exit('the reason')", log)
    assert child.last_lines() == [*(str(number) for number in range(39, 50)), "the reason"]
    said = exit_notice(child, "manager")
    assert "The manager ended with exit code 1; the end of" in said
    assert "  the reason\n" in said
    assert "Nothing answers until the cluster is started again." in said
    silent = await ended("pass", log)
    assert silent.exit_report() == f"ended with exit code 0; the end of {log}: nothing was written"


async def test_a_crash_is_shown_from_its_beginning(tmp_path: Path) -> None:
    code = "import ctypes, sys; print('busy', flush=True); sys.setrecursionlimit(10**6)\ndef go(n): go(n - 1) if n else ctypes.string_at(0)\ngo(60)"
    child = await ended(code, tmp_path / "n1.log")
    said = exit_notice(child, "agent")
    assert "Agent manager was killed by SIGSEGV (11)" in said
    assert "What runs there runs on, but nothing starts or stops there." in said
    assert child.last_lines()[0] == "Fatal Python error: Segmentation fault"
    assert len(child.last_lines()) == 12


async def test_what_cannot_be_read_of_a_log_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "manager.log"
    child = await ended("print('x' * 200_000, end='')", log)
    # The end of a log is read, however long it is.
    assert [len(line) for line in child.last_lines()] == [65_536]
    log.unlink()
    assert child.exit_report() == f"ended with exit code 0; the end of {log}: nothing was written"


@pytest_asyncio.fixture
async def processes(tmp_path: Path) -> AsyncIterator[dict[str, ChildProcess]]:
    """A manager, a router and two agents, of which nothing is known but that they run."""
    made = {
        name: ChildProcess(name, ["sleep", "1000"], tmp_path / f"{name}.log", {})
        for name in ("manager", "router", "n1", "n2")
    }
    try:
        for process in made.values():
            await process.start()
        yield made
    finally:
        for process in made.values():
            await process.kill()


async def test_each_process_that_ends_is_reported_once_until_the_cluster_is_stopped(
    processes: dict[str, ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[tuple[str, bool]] = []
    monkeypatch.setattr(dev, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr("click.echo", lambda message, *, err: printed.append((message, err)))
    agents = [SimpleNamespace(process=processes[name]) for name in ("n1", "n2")]
    cluster: Any = SimpleNamespace(manager=processes["manager"], routers=[processes["router"]], agents=agents)
    stopped: Any = asyncio.get_running_loop().create_future()
    supervising = asyncio.create_task(dev._supervise(cluster, stopped))  # noqa: SLF001  # it has one caller

    async def is_reported(number: int) -> str:
        await eventually(lambda: len(printed) >= number or supervising.done())
        assert not supervising.done()
        assert printed[-1][1], "on standard error"
        return printed[-1][0]

    processes["n1"].signal(signal.SIGKILL)
    assert "\nAgent n1 was killed by SIGKILL (9); the end of" in await is_reported(1)
    processes["manager"].signal(signal.SIGTERM)
    assert "\nThe manager was killed by SIGTERM (15); the end of" in await is_reported(2)
    processes["router"].signal(signal.SIGTERM)
    assert "\nThe router was killed by SIGTERM (15); the end of" in await is_reported(3)
    # In one step: stopping the cluster ends its processes, too.
    processes["n2"].signal(signal.SIGTERM)
    while processes["n2"].pid is not None:
        time.sleep(0.005)  # noqa: ASYNC251  # nothing else is to run
    stopped.set_result(True)
    await supervising
    assert len(printed) == 3
