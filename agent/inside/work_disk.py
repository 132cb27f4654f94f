"""The file system of a work directory, which bounds its bytes and files: who writes more gets ENOSPC.

It lies in a file beside the work directory, `ID.image`, and is mounted as `ID.disk`, for the agent alone. A directory
of it is mounted over the work directory, by which kernels and all others reach it. So incomplete uploads lie on the
same file system, and no kernel sees them. All functions block.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from retinue.agent.host import loop_disk, syscalls

if TYPE_CHECKING:
    from pathlib import Path

WORK, IMAGE = "work", ".image"


def image_of(home: Path) -> Path:
    """Returns the file of a work directory's file system."""
    return home.with_name(f"{home.name}{IMAGE}")


def mount_of(home: Path) -> Path:
    """Returns where all of a work directory's file system is mounted."""
    return home.with_name(f"{home.name}.disk")


def add(home: Path, size: int, files: int) -> None:
    """Has an empty work directory hold that many bytes and files; its owner and mode stay.

    Raises OSError, and then it is as before.
    """
    image, disk = image_of(home), mount_of(home)
    status = home.stat()
    try:
        # One that a crash of the agent has left is of no use.
        remove(home)
        loop_disk.make(image, size, files)
        disk.mkdir(mode=0o700)
        loop_disk.mount(image, disk, fresh=True)
        # For the uploads beside it; they belong to root.
        disk.chmod(0o700)
        work = disk / WORK
        work.mkdir()
        os.chown(work, status.st_uid, status.st_gid)
        work.chmod(status.st_mode & 0o7777)
        syscalls.mount(str(work), str(home), None, syscalls.MS_BIND)
    except OSError:
        remove(home)
        raise


def restore(home: Path) -> None:
    """Mounts again what this process does not see of a work directory in use: an agent that was started again may have
    other mounts than the one before. Raises OSError.
    """
    image, disk = image_of(home), mount_of(home)
    if not image.exists() or os.path.ismount(home):
        return
    if not os.path.ismount(disk):
        loop_disk.mount(image, disk)
    syscalls.mount(str(disk / WORK), str(home), None, syscalls.MS_BIND)


def is_bounded(home: Path) -> bool:
    """Returns whether a work directory has a file system of its own."""
    return image_of(home).exists() and os.path.ismount(home)


def reached(home: Path) -> Path:
    """Returns the path by which files can be moved between a work directory and its incomplete uploads."""
    work = mount_of(home) / WORK
    return work if is_bounded(home) and work.is_dir() else home


def remove(home: Path) -> None:
    """Removes the file system of a work directory with all that is in it; the directory stays, empty. Nothing happens
    if there is none. Raises OSError.
    """
    image, disk = image_of(home), mount_of(home)
    if not (image.exists() or disk.exists()):
        return
    loop_disk.unmount(home)
    loop_disk.unmount(disk)
    image.unlink(missing_ok=True)
    if disk.exists():
        # With the directory, Linux unmounts it in mount namespaces of other kernels, which have copies of the mounts
        # that there were when they started.
        disk.rmdir()
