"""What keeps a process from running, as control groups of version 2 say it; those of version 1 are tried for real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.agent.host.freezer import is_frozen, resume
from retinue.agent.host.processes import Process, identify


def own_group(mount: Path) -> Path:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    found = [line.removeprefix("0::/") for line in lines if line.startswith("0::")]
    if not found:
        pytest.skip("this machine has no control groups of version 2")
    (mount / "cgroup.controllers").touch()
    group = mount / found[0]
    group.mkdir(parents=True, exist_ok=True)
    return group


def own_process() -> Process:
    found = identify(os.getpid())
    assert found is not None
    return found


@pytest.mark.parametrize(("events", "frozen"), [("populated 1\nfrozen 1\n", True), ("frozen 0\n", False), ("", False)])
def test_a_frozen_group_of_version_2(tmp_path: Path, events: str, frozen: bool) -> None:
    group = own_group(tmp_path)
    (group / "cgroup.events").write_text(events)
    (group / "cgroup.freeze").write_text("1")
    assert is_frozen(own_process(), tmp_path) is frozen
    resume(own_process(), (), tmp_path)
    assert (group / "cgroup.freeze").read_text() == ("0" if frozen else "1")


def test_another_process_of_that_number_and_a_missing_file(tmp_path: Path) -> None:
    group = own_group(tmp_path)
    assert not is_frozen(own_process(), tmp_path)
    (group / "cgroup.events").write_text("frozen 1\n")
    assert not is_frozen(Process(os.getpid(), 1), tmp_path)
    assert not is_frozen(Process(2**22 + 1, 1), tmp_path)
