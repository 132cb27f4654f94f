"""What is said of a process of a local cluster that has ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from retinue.client.command.dev import exit_notice
from retinue.client.local.process import ChildProcess, how_it_ended


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
    assert await child.wait(30)
    return child


async def test_the_last_lines_of_the_last_run(tmp_path: Path) -> None:
    log = tmp_path / "manager.log"
    log.write_text("a run before\n")
    child = await ended("import sys; [print(n) for n in range(50)]; sys.exit('the reason')", log)
    assert child.last_lines() == [*(str(number) for number in range(39, 50)), "the reason"]
    said = exit_notice(child, manager=True)
    assert "The manager ended with exit code 1; the end of" in said
    assert "  the reason\n" in said
    silent = await ended("pass", log)
    assert silent.exit_report() == f"ended with exit code 0; the end of {log}: nothing was written"


async def test_a_crash_is_shown_from_its_beginning(tmp_path: Path) -> None:
    code = "import ctypes, sys; print('busy', flush=True); sys.setrecursionlimit(10**6)\ndef go(n): go(n - 1) if n else ctypes.string_at(0)\ngo(60)"
    child = await ended(code, tmp_path / "n1.log")
    said = exit_notice(child, manager=False)
    assert "Agent manager was killed by SIGSEGV (11)" in said
    assert child.last_lines()[0] == "Fatal Python error: Segmentation fault"
    assert len(child.last_lines()) == 12
