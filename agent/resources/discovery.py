"""Discovers the resources of a node: processors by memory node, memory, disk, kind of machine, and this boot's id."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.resources.core.holdings import CUDA
from retinue.rpc.core.amounts import CPU, DISK, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNLIMITED = 1 << 60
RESERVED_PART = 10
"""Unless a reserve is given, this part of the disk is not offered: images, outputs, and what file systems of work
directories need themselves take some of it.
"""
STARTS_PER_PROCESSOR, MIN_STARTS, MAX_STARTS = 2, 4, 32


@dataclass(frozen=True, slots=True)
class Node:
    """A node: `processors` this process may use, `memory` in bytes, all before any reserve. `gpus` is None where
    nothing has looked for any. `disk` is in bytes, what kernels may have of the file system of their work directories;
    None where nothing has looked.
    """

    processors: int
    memory: int
    architecture: str
    boot_id: str
    gpus: int | None = None
    disk: int | None = None


def discover(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Node:
    """Looks at the node; limits set on this process by affinity or by control groups at the top count."""
    return Node(
        processors=min(len(os.sched_getaffinity(0)), _processor_limit(cgroup)),
        memory=min(_total_memory((proc / "meminfo").read_text()), _memory_limit(cgroup)),
        architecture=platform.machine(),
        boot_id=(proc / "sys/kernel/random/boot_id").read_text().strip(),
    )


def capacity(
    node: Node, reserve: Mapping[str, int], override: Mapping[str, int], left: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Amounts to offer, in the smallest unit: what was found less the reserve, then what was given by hand.

    `left` is what the cluster that the node belongs to leaves of it, in place of what was found. No more GPUs are
    offered than there are, whatever was given. A part of the disk is reserved unless the reserve names it.
    """
    found = {CPU: node.processors * 1000, MEMORY: node.memory} | ({CUDA: node.gpus * 1000} if node.gpus else {})
    if left is not None:
        found = dict(left)
    elif node.disk is not None:
        found[DISK] = node.disk
        reserve = {DISK: node.disk // RESERVED_PART} | dict(reserve)
    given = dict(override)
    if CUDA in given and node.gpus is not None:
        given[CUDA] = min(given[CUDA], found.get(CUDA, 0))
    return {name: max(0, amount - reserve.get(name, 0)) for name, amount in found.items()} | given


def cores_by_node(
    system: Path = Path("/sys/devices/system/node"), allowed: set[int] | None = None
) -> dict[int, list[int]]:
    """Cores this process may use, by memory node; all on one where the system reports none."""
    usable = os.sched_getaffinity(0) if allowed is None else allowed
    found: dict[int, list[int]] = {}
    for directory in sorted(system.glob("node[0-9]*"), key=lambda directory: int(directory.name.removeprefix("node"))):
        cores = parse_list((directory / "cpulist").read_text())
        if here := [core for core in cores if core in usable]:
            found[int(directory.name.removeprefix("node"))] = here
    return found or {0: sorted(usable)}


def parse_list(text: str) -> list[int]:
    """Returns the numbers from the kernel's `0-3,8`."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def parallel_starts(processors: int) -> int:
    """Returns how many kernels a node starts at a time: more would only make each of them slower,
    whatever starts them.
    """
    return min(MAX_STARTS, max(MIN_STARTS, STARTS_PER_PROCESSOR * processors))


def _total_memory(meminfo: str) -> int:
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise ValueError("the node does not say how much memory it has")


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.lstrip("-").isdecimal() else None


def _memory_limit(cgroup: Path) -> int:
    limits = (_number(cgroup / "memory.max"), _number(cgroup / "memory" / "memory.limit_in_bytes"))
    return min((limit for limit in limits if limit is not None and limit > 0), default=_UNLIMITED)


def _processor_limit(cgroup: Path) -> int:
    """Returns the number of whole processors that a quota allows for, at least one."""
    quota, period = _number(cgroup / "cpu" / "cpu.cfs_quota_us"), _number(cgroup / "cpu" / "cpu.cfs_period_us")
    try:
        words = (cgroup / "cpu.max").read_text().split()
    except OSError:
        words = []
    if len(words) == 2 and words[0].isdecimal():  # noqa: PLR2004  # quota and period
        quota, period = int(words[0]), int(words[1])
    if quota is None or period is None or quota <= 0 or period <= 0:
        return _UNLIMITED
    return max(1, quota // period)
