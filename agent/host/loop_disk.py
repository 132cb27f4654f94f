"""File systems in files of the node: Linux itself keeps what is written there to their bytes and files.

Each is an ext4 in a sparse file, mounted by a loop device that goes with its last mount (LO_FLAGS_AUTOCLEAR; loop(4)).
It has no journal: what is in it is removed after a crash of the node. Space of deleted files is given back to the node
(`discard`), and the node's cache has no second copy of what the file system's own has (LO_FLAGS_DIRECT_IO).

Project quotas would do the same without a device. They are not used, as they bind nobody here: the owner of a file may
have it counted to another project (FS_IOC_FSSETXATTR) unless a user namespace keeps him from it, and kernels have none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.host import syscalls

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL = Path("/dev/loop-control")
DEVICES = Path("/sys/block")
MAKE = "mke2fs"
BLOCK = 4096
"""Bytes of a block, of the file system and of its device."""
INODE = 256
"""Bytes of the record of a file."""
LEAST = 4 << 20
"""The fewest bytes of a file system."""
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE, _LOOP_GET_STATUS64 = 0x4C82, 0x4C0A, 0x4C05
_AUTOCLEAR, _DIRECT_IO = 4, 16
# `struct loop_config` of linux/loop.h: descriptor and size of blocks, `struct loop_info64`, and what is reserved.
_CONFIG = struct.Struct("=II 5Q4I 64s64s32s2Q 8Q")
_STATUS = struct.Struct("=5Q4I 64s64s32s2Q")
# Free devices that others may take before they are configured.
_TRIES = 64
# What a new file system has in its file, by the length of that and the number of files.
_formats: dict[tuple[int, int], tuple[tuple[int, bytes], ...]] = {}
_MAX_FORMATS, _MAX_FORMAT_BYTES = 4, 16 << 20
# Inodes that ext4 has for itself.
_OWN_FILES = 11
_FEATURES = "^has_journal,^resize_inode,metadata_csum,uninit_bg"
_MOUNT_OPTIONS = "discard,noinit_itable,barrier=0"
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV


def image_size(size: int, files: int) -> int:
    """Returns the bytes of a file in which a file system has that many for its `files`, and what it needs itself. Pure.

    Itself it needs inodes, bitmaps and descriptors of each 128 MiB, and 2 % that it sets aside, 16 MiB at the most.
    """
    size = max(size, LEAST)
    groups = (size + files * INODE) // (128 << 20) + 1
    own = (files + _OWN_FILES) * INODE + groups * 4 * BLOCK + min(size // 50, 16 << 20) + (1 << 20)
    return -(-(size + own) // BLOCK) * BLOCK


def configuration(descriptor: int, name: str) -> bytes:
    """Returns the `struct loop_config` of a device for an open file. Pure."""
    flags = _AUTOCLEAR | _DIRECT_IO
    text = os.fsencode(name)[-63:]
    return _CONFIG.pack(descriptor, BLOCK, 0, 0, 0, 0, 0, 0, 0, 0, flags, text, b"", b"", 0, 0, *(0,) * 8)


def make(image: Path, size: int, files: int) -> None:
    """Makes the file with its file system, for at least that many bytes and files. Blocks; raises OSError.

    What MAKE writes for one size is kept, and written by this process for the next ones: that takes a tenth of the
    time. So they have one UUID, which Linux does not mind for ext4.
    """
    length = image_size(size, files)
    descriptor = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, length)
        pieces = _formats.get((length, files))
        if pieces is None:
            _format(image, files)
            ranges = list(_data_of(descriptor))
            # All of the file where holes are not known, and much of one for a very large disk.
            if sum(end - begin for begin, end in ranges) <= _MAX_FORMAT_BYTES:
                if len(_formats) >= _MAX_FORMATS:
                    _formats.clear()
                _formats[length, files] = tuple(
                    (begin, os.pread(descriptor, end - begin, begin)) for begin, end in ranges
                )
        else:
            for offset, data in pieces:
                os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)


def _format(image: Path, files: int) -> None:
    program = shutil.which(MAKE, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise OSError(errno.ENOENT, f"the program {MAKE} is missing: install the package e2fsprogs")
    words = ["-t", "ext4", "-q", "-F", "-m", "0", "-b", str(BLOCK), "-I", str(INODE), "-N", str(files + _OWN_FILES)]
    words += ["-O", _FEATURES, "-E", "lazy_itable_init=1,nodiscard", str(image)]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise OSError(errno.EIO, f"{MAKE}: {done.stderr.strip() or done.returncode}")


def _data_of(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yields the begin and the end of each part of a sparse file that is no hole."""
    offset = 0
    while True:
        try:
            begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        offset = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, offset


def mount(image: Path, target: Path, *, fresh: bool = False) -> None:
    """Mounts the file's file system over a directory, once more if it is mounted elsewhere, which a `fresh` one is not:
    each device of the node is asked for it. Blocks; raises OSError.
    """
    with attached(image, fresh=fresh) as device:
        syscalls.mount(device, str(target), "ext4", _FLAGS, _MOUNT_OPTIONS)


@contextlib.contextmanager
def attached(image: Path, *, fresh: bool = False) -> Iterator[str]:
    """Yields the device that has the file, which is there for that long at least; none has a `fresh` one.
    Blocks; raises OSError.
    """
    descriptor = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        device, held = (None if fresh else _opened(descriptor)) or _configured(descriptor, image.name)
    finally:
        os.close(descriptor)
    try:
        yield device
    finally:
        os.close(held)


def _opened(image: int) -> tuple[str, int] | None:
    """Returns the device that has the file already, and a descriptor of it; a second one would damage what is there."""
    status = os.fstat(image)
    for entry in DEVICES.glob("loop*/loop"):
        with contextlib.suppress(OSError):
            device = f"/dev/{entry.parent.name}"
            held = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            with contextlib.suppress(OSError):
                found = _STATUS.unpack(fcntl.ioctl(held, _LOOP_GET_STATUS64, bytes(_STATUS.size)))
                if (found[0], found[1]) == (status.st_dev, status.st_ino):
                    return device, held
            os.close(held)
    return None


def _configured(image: int, name: str) -> tuple[str, int]:
    wanted = configuration(image, name)
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            held = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(held, _LOOP_CONFIGURE, wanted)
            except OSError as error:
                os.close(held)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device, held
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "other processes take each loop device that is free")


def unmount(target: Path) -> None:
    """Unmounts all that is mounted over a directory, if anything is; what is open there stays until it is closed.
    Blocks; raises OSError.
    """
    while True:
        try:
            syscalls.unmount(str(target), syscalls.MNT_DETACH)
        except OSError as error:
            # Not mounted, or not there.
            if error.errno in {errno.EINVAL, errno.ENOENT}:
                return
            raise
