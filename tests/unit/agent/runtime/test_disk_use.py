"""How much a kernel has on the disk, and what is too much."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.conditions import Conditions
from retinue.agent.runtime import disk_use
from retinue.agent.runtime.disk_use import (
    Bounds,
    DiskFootprint,
    DiskWatch,
    Use,
    bounds_of,
    devices_of,
    exceeded,
    find_disk,
    measure,
    measure_footprint,
    slot_bounds,
    taken,
    tolerated,
    unlinked,
)
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUNDS = Bounds(64 << 20, 1000)


def test_what_is_too_much() -> None:
    assert exceeded(Use(BOUNDS.size, BOUNDS.files), BOUNDS) == ""
    assert "64 MiB" in exceeded(Use(BOUNDS.size + 1, 1), BOUNDS)
    assert "1000 files" in exceeded(Use(0, 1001), BOUNDS)


def test_a_slot_bounds_bytes_and_in_proportion_files() -> None:
    assert slot_bounds(0) is None
    assert slot_bounds(1 << 30) == Bounds(1 << 30, 131_072)
    assert slot_bounds(4 << 20) == Bounds(4 << 20, 1000)
    assert slot_bounds(1 << 30, 50) == Bounds(1 << 30, 50)


def test_a_full_work_directory_is_no_offence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beside it is: all of a kernel counts together."""
    monkeypatch.setattr(disk_use, "taken", lambda _: BOUNDS.size + 4096)
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    footprint = DiskFootprint((tmp_path,), bounded=tmp_path / "work")
    assert exceeded(measure_footprint(footprint, tolerated(BOUNDS)), tolerated(BOUNDS)) == ""
    (tmp_path / "more").write_bytes(bytes(8 << 20))
    assert "MiB" in exceeded(measure_footprint(footprint, tolerated(BOUNDS)), tolerated(BOUNDS))
    assert tolerated(Bounds(1 << 40, 1)).size == (1 << 40) + (64 << 20)


def test_nothing_is_taken_in_a_file_system_that_is_gone(tmp_path: Path) -> None:
    """What is taken on the node's own is not the kernel's."""
    (tmp_path / "work").mkdir()
    assert taken(tmp_path / "work") == taken(tmp_path / "gone") == 0


def test_what_is_free_and_in_work_directories_is_for_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    free = [100 << 30]

    def statvfs(_: object) -> os.statvfs_result:
        blocks = free[0] // 4096
        return os.statvfs_result((4096, 4096, 1 << 40, blocks + 7, blocks, 1, 1, 1, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert find_disk(scratch) == 100 << 30
    (scratch / "k.1").mkdir()
    (scratch / "k.1" / "big").write_bytes(bytes(1 << 20))
    with (scratch / "k.1.image").open("wb") as image:
        os.posix_fallocate(image.fileno(), 0, 3 << 20)
        image.truncate(1 << 30)
    taken = (scratch / "k.1.image").lstat().st_blocks * 512
    # As it is after a restart beside a kernel that has written.
    free[0] = (100 << 30) - taken
    assert find_disk(scratch) == 100 << 30
    free[0] -= 1
    assert find_disk(scratch) == 99 << 30
    free[0] = (700 << 20) - taken + 4096
    assert find_disk(scratch) == 700 << 20


def test_bounds_are_a_part_of_the_file_system(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    found = bounds_of(tmp_path)
    assert found.size == status.f_blocks * status.f_frsize // 10
    assert found.files >= 100_000
    assert bounds_of(tmp_path, 7, 8) == Bounds(7, 8)


def test_what_takes_space_counts(tmp_path: Path) -> None:
    assert measure(tmp_path / "missing", BOUNDS) == Use()
    (tmp_path / "a" / "b").mkdir(parents=True)
    empty = measure(tmp_path, BOUNDS)
    assert empty.files == 2
    with (tmp_path / "a" / "b" / "reserved").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    os.link(tmp_path / "a" / "b" / "reserved", tmp_path / "again")
    (tmp_path / "link").symlink_to("/")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    found = measure(tmp_path, BOUNDS)
    assert found.files == 6
    assert 1 << 20 <= found.size - empty.size <= (1 << 20) + 16_384


def test_it_stops_where_that_is_too_much(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).touch()
    assert measure(tmp_path, Bounds(1 << 20, 10)).files == 11


def test_a_deep_tree_counts_in_full(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    top = here
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        if here != top:
            os.close(here)
        here = below
    os.write(descriptor := os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here), bytes(1 << 20))
    for one in (descriptor, here, top):
        os.close(one)
    before = set(os.listdir("/proc/self/fd"))
    found = measure(tmp_path, BOUNDS)
    assert found.files >= 301
    assert found.size >= 1 << 20
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_directory_that_cannot_be_read_to_its_end_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a container whose file system is taken away meanwhile: its overlay answers EACCES."""
    (tmp_path / "file").write_bytes(b"")
    scandir = os.scandir

    def vanishing(directory: int) -> Iterator[os.DirEntry[str]]:
        with scandir(directory) as entries:
            yield next(entries)
        raise PermissionError

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "scandir", vanishing)
    assert measure(tmp_path, BOUNDS).files == 1
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_small_file_system_is_not_filled_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(inodes: int) -> int:
        values = (4096, 4096, 1000, 500, 500, inodes, inodes, inodes, 0, 255)
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
        return bounds_of(tmp_path).files

    assert found(65_536) == 32_768
    assert found(1 << 24) == (1 << 24) // 10
    assert found(0) == 100_000


KEEPERS = {
    "open": "file = os.open('f', os.O_RDWR | os.O_CREAT); os.ftruncate(file, 0); os.write(file, bytes(1 << 20)); os.unlink('f')",
    "unnamed": "file = os.open('.', os.O_RDWR | os.O_TMPFILE); os.write(file, bytes(1 << 20))",
    "mapped": (
        "file = os.open('f', os.O_RDWR | os.O_CREAT); os.write(file, bytes(1 << 20)); os.unlink('f')\n"
        "memory = mmap.mmap(file, 1 << 20, mmap.MAP_SHARED); os.close(file)"
    ),
}


@contextmanager
def holder(directory: Path, script: str) -> Iterator[int]:
    """A process that has done something in a directory, and stays."""
    program = f"import mmap, os, sys\n{script}\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("kind", KEEPERS)
def test_files_without_a_name_count(tmp_path: Path, kind: str) -> None:
    (tmp_path / "also (deleted)").write_bytes(bytes(1 << 20))
    with holder(tmp_path, f"other = open('also (deleted)')\n{KEEPERS[kind]}") as pid:
        devices = devices_of(tmp_path)
        assert measure(tmp_path, BOUNDS).size <= (1 << 20) + 16_384
        # However often they are open.
        assert unlinked([pid, pid], devices) == (1 << 20, 1)
        # Elsewhere they count for no kernel.
        assert unlinked([pid], devices_of(Path("/proc"))) == (0, 0)
        footprint = DiskFootprint((tmp_path,), [pid], devices)
        assert "MiB" in exceeded(measure_footprint(footprint, Bounds(1 << 20, 1000)), Bounds(1 << 20, 1000))
    assert unlinked([pid], devices) == (0, 0)


def test_all_directories_of_a_kernel_count_together(tmp_path: Path) -> None:
    for name in ("home", "layer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(1 << 20))
    found = measure_footprint(
        DiskFootprint((tmp_path / "home", tmp_path / "layer", tmp_path / "gone"), layer=5), BOUNDS
    )
    assert (2 << 20) + 5 <= found.size <= (2 << 20) + 16_389
    assert found.files == 2


async def test_a_rush_for_files_is_noticed_as_one_for_bytes_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look comes before its time: the pause between two is longer here than the test may take."""
    free = [1 << 20]
    looks = 0
    seen = asyncio.Event()

    def statvfs(_: object) -> os.statvfs_result:
        free[0] -= 400
        return os.statvfs_result((4096, 4096, 1000, 500, 500, 1 << 20, free[0], free[0], 0, 255))

    class Nothing:
        async def footprints(self) -> dict[str, DiskFootprint]:
            nonlocal looks
            looks += 1
            if looks > 1:
                seen.set()
            return {}

        async def end(self, attempt_id: str, reason: str, message: str) -> None:
            raise AssertionError

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(disk_use, "INTERVAL", 1e6)
    monkeypatch.setattr(disk_use, "STEP", 0.001)
    watch = asyncio.create_task(DiskWatch(Nothing(), tmp_path, BOUNDS, Conditions()).run())
    try:
        async with asyncio.timeout(NEVER):
            await seen.wait()
    finally:
        watch.cancel()
