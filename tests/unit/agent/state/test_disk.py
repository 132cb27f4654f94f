"""When a disk counts as full: before it is, in bytes or in inodes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from retinue.agent.conditions import Conditions
from retinue.agent.state.disk import Disk

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("total", "free", "files", "free_files", "full"),
    [
        (100 * GIB, 64 * MIB, 10**6, 10**5, False),
        (100 * GIB, 63 * MIB, 10**6, 10**5, True),
        # A fiftieth of a small disk is less.
        (100 * MIB, 2 * MIB, 10**6, 10**5, False),
        (100 * MIB, 1 * MIB, 10**6, 10**5, True),
        (100 * GIB, GIB, 10**6, 1000, False),
        (100 * GIB, GIB, 10**6, 999, True),
        # Some file systems do not count inodes.
        (100 * GIB, GIB, 0, 0, False),
    ],
)
def test_a_disk_is_full_before_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, free: int, files: int, free_files: int, full: bool
) -> None:
    found = SimpleNamespace(
        f_flag=0, f_frsize=4096, f_blocks=total >> 12, f_bavail=free >> 12, f_files=files, f_favail=free_files
    )
    conditions = Conditions()
    disk = Disk(tmp_path, conditions)
    monkeypatch.setattr(os, "statvfs", lambda _directory: found)
    disk.look()
    assert [condition.type for condition in conditions.all()] == (["DISK_FULL"] if full else [])


def test_the_disk_of_an_engine_counts_once_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, free = SimpleNamespace(f_flag=0, f_frsize=1, f_blocks=GIB, f_bavail=0, f_files=0), os.statvfs(tmp_path)
    engine = tmp_path / "engine"
    monkeypatch.setattr(os, "statvfs", lambda directory: full if directory == engine else free)
    conditions = Conditions()
    disk = Disk(tmp_path, conditions)
    for directories in ({}, {"/gone": tmp_path / "gone"}):
        disk.follow(directories)
        disk.look()
        assert conditions.all() == ()
    disk.follow({"/var/lib/docker": engine})
    disk.look()
    (condition,) = conditions.all()
    assert condition.message == "the disk of /var/lib/docker is full: 0 of 1048576 KiB are free"
    disk.follow({})
    disk.look()
    assert conditions.all() == ()
