"""Computes the usage of a kernel from the text of the node's files. Pure.

Sources: cgroup-v1 (cpuacct.usage, memory.*, blkio.throttle.io_service_bytes, pids.current) and cgroup-v2 (cpu.stat,
memory.*, io.stat, pids.current) of the Linux kernel's administration guide, and /proc/PID/net/dev, whose counters are
those that netlink reports of the interfaces. Whatever is not there, or cannot be read, is None: it is missing,
and not zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

UNLIMITED = 1 << 60
"""Version 1 says a number like this or more when there is no limit."""
LOOPBACK = "lo"
TAP = "tap"
"""Begin of the names of taps."""
_RECEIVED, _SENT = 0, 8


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters since the start of a kernel (time in nanoseconds, bytes read, written, received, sent), and levels now.

    `memory` is in bytes and leaves out file pages that the node can take back at once; `memory_peak` does not.
    """

    cpu: int | None = None
    memory: int | None = None
    memory_peak: int | None = None
    memory_limit: int | None = None
    read: int | None = None
    written: int | None = None
    received: int | None = None
    sent: int | None = None
    tasks: int | None = None


@dataclass(frozen=True, slots=True)
class FinalUsage:
    """What a kernel that has ended had used when it was last measured, at `time` in seconds since the epoch.

    Processor time is in nanoseconds, the rest in bytes.
    """

    time: float
    cpu: int | None = None
    memory_peak: int | None = None
    read: int | None = None
    written: int | None = None


def usage_of(read: Callable[[str, str], str | None], unified: bool, network: str | None) -> Usage:
    """Returns the usage; `read` gives the text of a file by controller (empty in version 2) and name,
    `network` is /proc/PID/net/dev.
    """
    received, sent = network_bytes(network)
    parts = _version_two(read) if unified else _version_one(read)
    return Usage(*parts[:6], received, sent, parts[6])


_Parts = tuple[int | None, int | None, int | None, int | None, int | None, int | None, int | None]


def _version_one(read: Callable[[str, str], str | None]) -> _Parts:
    limit = number(read("memory", "memory.limit_in_bytes"))
    disk = read("blkio", "blkio.throttle.io_service_bytes")
    return (
        number(read("cpuacct", "cpuacct.usage")),
        _difference(
            number(read("memory", "memory.usage_in_bytes")), keyed(read("memory", "memory.stat"), "total_inactive_file")
        ),
        number(read("memory", "memory.max_usage_in_bytes")),
        None if limit is None or limit >= UNLIMITED else limit,
        disk_bytes_one(disk, "Read"),
        disk_bytes_one(disk, "Write"),
        number(read("pids", "pids.current")),
    )


def _version_two(read: Callable[[str, str], str | None]) -> _Parts:
    microseconds = keyed(read("", "cpu.stat"), "usage_usec")
    disk = read("", "io.stat")
    return (
        None if microseconds is None else microseconds * 1000,
        _difference(number(read("", "memory.current")), keyed(read("", "memory.stat"), "inactive_file")),
        number(read("", "memory.peak")),
        number(read("", "memory.max")),
        disk_bytes_two(disk, "rbytes"),
        disk_bytes_two(disk, "wbytes"),
        number(read("", "pids.current")),
    )


def number(text: str | None) -> int | None:
    """Returns the number that a file holds; None for anything else, `max` for instance."""
    found = (text or "").strip()
    return int(found) if found.isascii() and found.isdigit() else None


def keyed(text: str | None, key: str) -> int | None:
    """Returns the value in the line `KEY VALUE`."""
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return number(value)
    return None


def disk_bytes_one(text: str | None, kind: str) -> int | None:
    """Returns the sum over devices of lines `MAJOR:MINOR KIND BYTES`;
    a group that did nothing yet has no such line, and a total of 0.
    """
    if text is None:
        return None
    fields = [line.split() for line in text.splitlines()]
    return sum(int(line[2]) for line in fields if len(line) == 3 and line[1] == kind and line[2].isdigit())  # noqa: PLR2004


def disk_bytes_two(text: str | None, key: str) -> int | None:
    """Returns the sum over devices of `KEY=BYTES` in lines `MAJOR:MINOR rbytes=… wbytes=…`; none yet is 0."""
    if text is None:
        return None
    pairs = [word.partition("=") for line in text.splitlines() for word in line.split()[1:]]
    return sum(int(value) for name, _, value in pairs if name == key and value.isdigit())


def network_bytes(text: str | None) -> tuple[int | None, int | None]:
    """Returns the bytes received and sent on all interfaces but the loopback and taps; None without another interface.

    What a virtual machine has at a tap passes an interface of its networks as well.
    """
    received: int | None = None
    sent: int | None = None
    for line in (text or "").splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if not colon or name.strip() == LOOPBACK or name.strip().startswith(TAP) or len(fields) <= _SENT:
            continue
        received = (received or 0) + int(fields[_RECEIVED])
        sent = (sent or 0) + int(fields[_SENT])
    return received, sent


def later(before: FinalUsage | None, usage: Usage, time: float) -> FinalUsage | None:
    """Returns what is known after one more measurement; one that found no groups any more adds nothing."""
    if (usage.cpu, usage.memory_peak, usage.read, usage.written) == (None, None, None, None):
        return before
    before = before or FinalUsage(time)
    return FinalUsage(
        time,
        before.cpu if usage.cpu is None else usage.cpu,
        before.memory_peak if usage.memory_peak is None else usage.memory_peak,
        before.read if usage.read is None else usage.read,
        before.written if usage.written is None else usage.written,
    )


def group_paths(text: str) -> dict[str, str]:
    """Returns the paths of a process' control groups by controller, out of /proc/PID/cgroup;
    that of version 2 under the empty name.
    """
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _difference(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else max(0, whole - part)
