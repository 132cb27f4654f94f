"""When a disk counts as full: before it is, in bytes or in inodes."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from retinue.agent.conditions import Conditions
from retinue.agent.state.disk import Disk

if TYPE_CHECKING:
    from pathlib import Path

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


def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[Path, int]) -> list[tuple[str, str]]:
    """Types and reasons of the conditions with these flags of file systems."""
    real = os.statvfs

    def statvfs(directory: Path) -> object:
        found = real(directory)
        names = ("f_frsize", "f_blocks", "f_bavail", "f_files", "f_favail")
        return SimpleNamespace(
            f_flag=flags.get(directory, 0), **{name: getattr(found, name) for name in names if hasattr(found, name)}
        )

    monkeypatch.setattr(os, "statvfs", statvfs)
    conditions = Conditions()
    disk = Disk(tmp_path, conditions, (tmp_path / "scratch",))
    (tmp_path / "scratch").mkdir()
    disk.look()
    found = [(condition.type, condition.reason) for condition in conditions.all()]
    flags.clear()
    disk.look()
    assert conditions.all() == ()
    return [(str(kind), str(reason)) for kind, reason in found]


def test_a_disk_that_has_become_read_only_takes_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(tmp_path, monkeypatch, {tmp_path: os.ST_RDONLY}) == [("DISK_FULL", "UNWRITABLE")]


def test_work_directories_that_programs_do_not_start_from_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert looked(tmp_path, monkeypatch, {tmp_path / "scratch": os.ST_NOEXEC}) == [("OTHER", "NOEXEC")]


def test_what_cannot_be_written_is_not_full_but_lost(tmp_path: Path) -> None:
    conditions = Conditions()
    disk = Disk(tmp_path, conditions)
    disk.note(OSError(errno.EIO, "Input/output error"))
    (condition,) = conditions.all()
    assert (condition.type, condition.reason) == ("DISK_FULL", "UNWRITABLE")
    assert condition.message.endswith("cannot be written: Input/output error; what kernels print meanwhile is lost")
    disk.look()
    assert conditions.all() == ()
