"""How much a kernel has on the disk, and what is too much."""

from __future__ import annotations

import os
from pathlib import Path

from agent.backends.disk_use import Bounds, Use, bounds_of, exceeded, measure

BOUNDS = Bounds(64 << 20, 1000)


def test_what_is_too_much() -> None:
    assert exceeded(Use(BOUNDS.size, BOUNDS.files), 0, BOUNDS) == ""
    assert "64 MiB" in exceeded(Use(BOUNDS.size, 1), 1, BOUNDS)
    assert "1000 files" in exceeded(Use(0, 1001), 0, BOUNDS)


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
