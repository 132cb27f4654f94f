"""Finds out whether KVM works on this node: by a machine that boots with it,
once per start of the node and version of QEMU.

That `/dev/kvm` is there says little: on some clouds a guest hangs with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.vm.core.machine import CMDLINE, QEMU
from retinue.agent.vm.sandbox import KVM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.agent.kernel.guest_linux import GuestLinux

_log = logging.getLogger(__name__)

DIRECTORY = Path("/run/retinue")
"""What was found is the node's, whichever agent asked."""
KVM_WORDS = ("-accel", "kvm", "-cpu", "host")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIMEOUT = 30.0
"""Seconds: with KVM, a machine boots in less than two."""
BOOTED = b"guest: booted"
_WORKS, _FAILS = b"works\n", b"fails\n"
_MEMORY = "192M"


async def works(  # noqa: PLR0917  # what tests change
    linux: GuestLinux,
    uid: int,
    gid: int,
    directory: Path = DIRECTORY,
    accelerator: Sequence[str] = KVM_WORDS,
    seconds: float = TIMEOUT,
) -> bool:
    """Returns whether machines can use KVM; `uid` and `gid` are of a user without rights.

    Has them boot within so many seconds. Raises OSError.

    False as well while another agent of the node is finding out.
    """
    path = await asyncio.to_thread(_result_path, linux, directory)
    if path is None:
        return False
    with contextlib.ExitStack() as stack:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        known = os.pread(descriptor, len(_WORKS), 0)
        if known not in {_WORKS, _FAILS}:
            known = _WORKS if await _boots(linux, uid, gid, accelerator, seconds) else _FAILS
            os.pwrite(descriptor, known, 0)
            _log.info("KVM was tried for virtual machines: it %s", known.decode().strip())
        return known == _WORKS


def _result_path(linux: GuestLinux, directory: Path) -> Path | None:
    """Returns where the result is for this start of the node, QEMU and the guest's Linux; None without a device."""
    if not KVM.exists():
        return None
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    program = Path(shutil.which(QEMU) or QEMU).stat()
    words = (BOOT_ID.read_text(), str(program.st_mtime_ns), str(program.st_size), linux.release, linux.initramfs.name)
    return directory / f"kvm-{hashlib.sha256(chr(10).join(words).encode()).hexdigest()[:16]}"


async def _boots(linux: GuestLinux, uid: int, gid: int, accelerator: Sequence[str], seconds: float) -> bool:
    user = ["setpriv", f"--reuid={uid}", f"--regid={gid}", f"--groups={KVM.stat().st_gid}", "--no-new-privs"]
    words = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"]
    words += ["-machine", "q35,usb=off,sata=off", *accelerator, "-m", _MEMORY]
    words += ["-kernel", str(linux.linux), "-initrd", str(linux.initramfs), "-append", f"{CMDLINE} retinue.probe"]
    process = await asyncio.create_subprocess_exec(
        *(*user, *words, "-serial", "stdio"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None  # noqa: S101  # as it was asked for
    try:
        async with asyncio.timeout(seconds):
            said = await process.stdout.read(1 << 16)
            while BOOTED not in said and (piece := await process.stdout.read(1 << 16)):
                said = (said + piece)[-(1 << 16) :]
    except TimeoutError:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return BOOTED in said
