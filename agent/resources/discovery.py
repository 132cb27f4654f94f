"""What a node has to give: processors, memory, kind of machine, and which boot this is."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.attempts import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]{1,3}))?([kmgt]?)", re.IGNORECASE)
_SLOT = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class Node:
    """A node: `processors` this process may use, `memory` in bytes, all before any reserve."""

    processors: int
    memory: int
    architecture: str
    boot_id: str


def discover(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Node:
    """Looks at the node; limits set on this process by affinity or by control groups at the top count."""
    return Node(
        processors=min(len(os.sched_getaffinity(0)), _processor_limit(cgroup)),
        memory=min(_total_memory((proc / "meminfo").read_text()), _memory_limit(cgroup)),
        architecture=platform.machine(),
        boot_id=(proc / "sys/kernel/random/boot_id").read_text().strip(),
    )


def capacity(node: Node, reserve: Mapping[str, int], override: Mapping[str, int]) -> dict[str, int]:
    """Amounts to offer, in the smallest unit: what was found less the reserve, then what was given by hand."""
    found = {CPU: node.processors * 1000, MEMORY: node.memory}
    return {name: max(0, amount - reserve.get(name, 0)) for name, amount in found.items()} | dict(override)


def parse_slots(text: str) -> dict[str, int]:
    """Amounts from `cpu=4,mem=8g`, in the smallest unit. Raises ValueError, naming what is wrong.

    `mem` takes a binary suffix; all others are counted in thousandths.
    """
    slots: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, amount = part.partition("=")
        match = _AMOUNT.fullmatch(amount)
        if _SLOT.fullmatch(name) is None or match is None or name in slots:
            raise ValueError(f"{part!r} is not an amount of a slot")
        whole, fraction, suffix = match.group(1), match.group(2) or "", match.group(3).lower()
        thousandths = int(whole) * 1000 + int(fraction.ljust(3, "0"))
        if name == MEMORY:
            slots[name] = thousandths * SUFFIXES[suffix] // 1000
        elif suffix:
            raise ValueError(f"{part!r}: only an amount of mem has a suffix")
        else:
            slots[name] = thousandths
    return slots


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
    """Whole processors that a quota allows for, at least one."""
    quota, period = _number(cgroup / "cpu" / "cpu.cfs_quota_us"), _number(cgroup / "cpu" / "cpu.cfs_period_us")
    try:
        words = (cgroup / "cpu.max").read_text().split()
    except OSError:
        words = []
    if len(words) == 2 and words[0].isdecimal():  # noqa: PLR2004 - quota and period
        quota, period = int(words[0]), int(words[1])
    if quota is None or period is None or quota <= 0 or period <= 0:
        return _UNLIMITED
    return max(1, quota // period)
