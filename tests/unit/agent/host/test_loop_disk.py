"""What Linux is told of a file system in a file."""

from __future__ import annotations

import struct

import pytest

from retinue.agent.host import loop_disk


@pytest.mark.parametrize("size", [0, 1, 32 << 20, (128 << 20) - 1, 25 << 30, 1 << 44])
@pytest.mark.parametrize("files", [1, 1000, 1_600_000])
def test_a_file_has_room_for_what_the_file_system_needs_itself(size: int, files: int) -> None:
    found = loop_disk.image_size(size, files)
    assert found % loop_disk.BLOCK == 0
    assert max(size, loop_disk.LEAST) + files * loop_disk.INODE < found
    # Not much more than that: `df` shows what the kernel may have.
    assert found < (max(size, loop_disk.LEAST) + files * loop_disk.INODE) * 1.03 + (2 << 20)


def test_a_device_goes_with_its_last_mount() -> None:
    """By the layout of linux/loop.h: the descriptor, the size of blocks, and flags and name within loop_info64."""
    found = loop_disk.configuration(7, "a" * 80)
    assert len(found) == 304
    assert struct.unpack_from("=II", found) == (7, 4096)
    (flags,) = struct.unpack_from("=I", found, 8 + 52)
    # LO_FLAGS_AUTOCLEAR and LO_FLAGS_DIRECT_IO.
    assert flags == 4 | 16
    assert found[8 + 56 : 8 + 56 + 64] == b"a" * 63 + b"\0"
    assert not any(found[8 + 56 + 64 :])


def test_the_status_of_a_device_is_read_by_its_layout() -> None:
    assert loop_disk._STATUS.size == 232  # noqa: SLF001
