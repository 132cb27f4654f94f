"""Control groups of version 2, as far as this node has them: joining, counting, ending and removing."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest

from retinue.agent.host.cgroups import MONITORS, MOUNT, CgroupError, Cgroups
from retinue.agent.host.launch_threads import Launchers
from tests.support.eventually import NEVER

UNIFIED = next((path for path in (MOUNT, MOUNT / "unified") if (path / "cgroup.controllers").exists()), None)


@pytest.mark.skipif(UNIFIED is None, reason="this node has no control groups of version 2")
def test_version_two() -> None:
    assert UNIFIED is not None
    cgroups = Cgroups(f"rt-test-{secrets.token_hex(4)}", UNIFIED)
    assert cgroups.unified
    cgroups.directories(MONITORS)[""].mkdir(parents=True)
    try:
        launchers = Launchers(cgroups, 2)
        sleeper = launchers.launch(
            "k.1",
            lambda prefix: subprocess.Popen(
                [*prefix, "/bin/sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE
            ),
        )
        assert sleeper.stdout is not None
        assert sleeper.stdout.read(1) == b"\n"
        assert cgroups.processes("k.1") == {sleeper.pid}
        assert cgroups.names() == {"k.1"}
        group = Path(f"/proc/{sleeper.pid}/cgroup").read_text().splitlines()[-1]
        assert group.endswith("/k.1")
        cgroups.watch_over(sleeper.pid)
        assert cgroups.processes("k.1") == set()
        assert cgroups.processes(MONITORS) == {sleeper.pid}
        cgroups.kill(MONITORS)
        assert sleeper.wait() == -9
        sleeper.stdout.close()
        launchers.close()
    finally:
        assert cgroups.remove("k.1", NEVER)
        cgroups.close(NEVER)
    assert not cgroups.directories("")[""].exists()


def test_missing_controllers_are_named(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "cgroup.procs").touch()
    with pytest.raises(CgroupError, match="missing: cpu, pids"):
        Cgroups("a", tmp_path)


def test_controllers_mounted_together_are_one_directory(tmp_path: Path) -> None:
    for name in ("memory", "pids", "cpu,cpuacct"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    for name in ("cpu", "cpuacct"):
        (tmp_path / name).symlink_to("cpu,cpuacct")
    directories = Cgroups("a", tmp_path).directories("k.1")
    assert directories["cpu"] == (tmp_path / "cpu,cpuacct" / "retinue" / "a" / "k.1")
    assert "cpuacct" not in directories
    assert len(set(directories.values())) == len(directories) == 3
    shown = Cgroups("a", tmp_path).shown("k.1")
    assert {name: shown[name] for name in directories} == directories
    assert shown["cpuacct"] == directories["cpu"]


def test_a_kernel_sees_all_controllers_that_the_jvm_needs() -> None:
    """In version 1, that of processors among them."""
    cgroups = Cgroups("a")
    needed = {""} if cgroups.unified else {"memory", "cpu", "cpuacct", "cpuset", "pids"}
    assert needed <= cgroups.shown("k.1").keys()
