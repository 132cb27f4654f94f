"""A real watchdog and real processes: it kills what is late, is there once,
and leaves when nothing is left to be guarded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.agent.fencing import watchdog
from retinue.agent.host.processes import Process, identify
from tests.integration.agent.fencing.watchdogs import BOOT_ID, LATE, sleeper, watchdogs, write
from tests.support.eventually import eventually_blocking
from tests.support.planted_modules import plant


def test_it_ends_what_is_late_and_leaves(tmp_path: Path) -> None:
    with sleeper() as first, sleeper() as second:
        write(tmp_path, 0.0, a=first)
        watchdog.ensure(tmp_path)
        (number,) = watchdogs(tmp_path)
        # Not a child of the process that asked for it.
        assert Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1] == "1"
        watchdog.ensure(tmp_path)
        assert watchdogs(tmp_path) == [number]
        # The agent is as good as gone: nothing but time is needed.
        write(tmp_path, LATE, a=first)
        eventually_blocking(lambda: identify(first.pid) != first)
        assert watchdog.was_ended(tmp_path, "a")
        eventually_blocking(lambda: not watchdogs(tmp_path))
        # Another one comes for what is released later, also when its file says that it is late already.
        write(tmp_path, LATE, a=first, b=second)
        watchdog.ensure(tmp_path)
        eventually_blocking(lambda: identify(second.pid) != second and not watchdogs(tmp_path))


def test_another_process_with_the_number_is_distinguished(tmp_path: Path) -> None:
    with sleeper() as process:
        other = Process(process.pid, process.start - 1)
        write(tmp_path, LATE, a=other)
        watchdog.watch(tmp_path, BOOT_ID)
        assert not watchdog.was_ended(tmp_path, "a")
        assert identify(process.pid) == process


def test_one_takes_no_module_from_the_directory_of_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plant(tmp_path / "planted"))
    with sleeper() as process:
        write(tmp_path, 0.0, a=process)
        watchdog.ensure(tmp_path)
        assert len(watchdogs(tmp_path)) == 1
    eventually_blocking(lambda: not watchdogs(tmp_path))


def test_where_none_can_be_started_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    with pytest.raises(watchdog.WatchdogError):
        watchdog.ensure(tmp_path)
