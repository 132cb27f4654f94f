"""The virtual machine of a kernel: its memory, its devices, and QEMU's argument vector. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.rpc.core.amounts import CPU, MEMORY, MIN_VM_MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

QEMU = "qemu-system-x86_64"
OVERHEAD = 96 << 20
"""Bytes of a kernel's memory that QEMU needs beside the guest's."""
DEFAULT_MEMORY = 512 << 20
"""Bytes of a kernel that has no limit."""
STREAMS = 24
"""Connections into a guest at a time: exec, ports, uploads of code."""
TRANSLATION_MIB = 32
"""Size of the cache of translated code, which lies in the overhead."""
SOCKETS = "/run/sockets"
"""Directory of the machine's Unix sockets, as QEMU sees it."""
SHARE, ROOT = "/run/share", "/run/root"
"""Directories that the guest sees: of its own and those of mounts, and the node's root for kernels without an image."""
SHARED_PROGRAMS, SHARED_PYTHON = "programs", "python"
"""Directories of the share for the agent's programs."""
MOUNT = "mount{}"
"""Name in the share of a mount, by its number."""
CONTROL, MONITOR = "control", "monitor"
CMDLINE = (
    "console=ttyS0 quiet panic=-1 reboot=t mitigations=off random.trust_cpu=on 8250.nr_uarts=1"
    # On a busy node, emulated timers are late, and Linux takes them for broken: it would panic.
    " no_timer_check cryptomgr.notests"
)
EMULATED = " tsc_early_khz=1000000 tsc=unstable"
"""Has a guest that is emulated neither measure the processor's counter, which takes long, nor take its time from it:
its rate is not that which was measured, and the time would jump when that is noticed.
"""
_MAC = "52:54:00:00:00:{:02x}"


class TooSmallError(Exception):
    """The memory of the kernel does not hold a virtual machine; the text says how much does."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Descriptors that QEMU inherits: files for what the guest writes, the kernel and its first files, taps,
    and an image or None.
    """

    status: int
    output: int
    console: int
    linux: int
    initramfs: int
    taps: tuple[int, ...] = ()
    image: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A virtual machine: bytes of memory, number of processors, and the accelerator (`tcg` or `kvm`)."""

    memory: int
    processors: int
    accelerator: str


def machine_of(slots: Mapping[str, int], accelerator: str) -> Machine:
    """Returns the machine that fits a kernel's slots. Raises TooSmallError."""
    total = slots.get(MEMORY, DEFAULT_MEMORY + OVERHEAD)
    if total < MIN_VM_MEMORY:
        raise TooSmallError(f"a virtual machine needs at least mem={MIN_VM_MEMORY >> 20}m")
    # QEMU takes whole MiB.
    memory = (total - OVERHEAD) >> 20 << 20
    return Machine(memory, max(1, math.ceil(slots.get(CPU, 1000) / 1000)), accelerator)


def stream(number: int) -> str:
    """Returns the name of a stream's socket."""
    return f"stream.{number}"


def device_address(number: int) -> str:
    """Returns the hardware address with which a machine's interface is born."""
    return _MAC.format(number)


def arguments(machine: Machine, files: Descriptors) -> list[str]:
    """Returns QEMU's argument vector. Its devices: serial ports, interfaces, random numbers, the share,
    and an image or a root.
    """
    words = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"]
    words += ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    words += ["-machine", "q35,usb=off,vmport=off,smbus=off,sata=off,hpet=off"]
    if machine.accelerator == "kvm":
        words += ["-accel", "kvm", "-cpu", "host"]
    else:
        words += ["-accel", f"tcg,tb-size={TRANSLATION_MIB}", "-cpu", "max"]
    words += ["-smp", str(machine.processors), "-m", f"{machine.memory >> 20}M"]
    words += [
        "-kernel",
        f"/proc/self/fd/{files.linux}",
        "-initrd",
        f"/proc/self/fd/{files.initramfs}",
        "-append",
        CMDLINE if machine.accelerator == "kvm" else CMDLINE + EMULATED,
    ]
    words += ["-add-fd", f"fd={files.console},set=1", "-add-fd", f"fd={files.status},set=2"]
    words += ["-add-fd", f"fd={files.output},set=3"]
    words += ["-chardev", "file,id=console,path=/dev/fdset/1,append=on", "-serial", "chardev:console"]
    words += ["-qmp", f"unix:{SOCKETS}/{MONITOR},server=on,wait=off"]
    words += ["-device", f"virtio-serial-pci,id=ports,max_ports={STREAMS + 4}"]
    words += _port("status", "file,path=/dev/fdset/2,append=on") + _port("output", "file,path=/dev/fdset/3,append=on")
    for name in (CONTROL, *map(stream, range(STREAMS))):
        words += _port(name, f"socket,path={SOCKETS}/{name},server=on,wait=off")
    for number, tap in enumerate(files.taps):
        words += ["-netdev", f"tap,id=net{number},fd={tap}"]
        words += ["-device", f"virtio-net-pci,netdev=net{number},mac={device_address(number)},romfile="]
    words += ["-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random"]
    words += _share("share", SHARE, "")
    if files.image is None:
        words += _share("root", ROOT, ",readonly=on")
    else:
        words += ["-add-fd", f"fd={files.image},set=4"]
        words += ["-drive", "if=none,id=image,file=/dev/fdset/4,format=raw,readonly=on,file.locking=off"]
        words += ["-device", "virtio-blk-pci,drive=image"]
    return words


def _port(name: str, backend: str) -> list[str]:
    kind, _, options = backend.partition(",")
    device = f"virtserialport,bus=ports.0,chardev={name},name=retinue.{name}"
    return ["-chardev", f"{kind},id={name},{options}", "-device", device]


def _share(tag: str, path: str, options: str) -> list[str]:
    # Files belong to QEMU's user, which is the kernel's.
    return [
        "-fsdev",
        f"local,id={tag},path={path},security_model=none,multidevs=remap{options}",
        "-device",
        f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
    ]
