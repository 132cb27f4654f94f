"""Limits of a kernel, and what they are in control groups of version 1 and 2 and in variables. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.rpc.core.amounts import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

CPU_PERIOD = 100_000
"""Length of the period in which a quota of processor time counts, in microseconds."""
SMALLEST_QUOTA = 1_000
"""The least quota the kernel takes, in microseconds."""


TEMPORARY_SIZE, SHARED_SIZE = 1 << 30, 64 << 20
"""Bytes of /tmp and of /dev/shm in a kernel without a limit of memory; with one, each may take half of it."""


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """Sizes in bytes of what a kernel has of file systems in memory: `temporary` of /tmp, `shared` of /dev/shm.

    A program that fills one gets ENOSPC, before the memory of the kernel is used up.
    """

    temporary: int
    shared: int

    @classmethod
    def of(cls, slots: Mapping[str, int], shared_memory: int) -> MemoryFiles:
        """Returns the sizes that go with an attempt's slots; `shared_memory` is as requested, 0 for the default."""
        memory = slots.get(MEMORY)
        temporary, shared = (TEMPORARY_SIZE, SHARED_SIZE) if memory is None else (memory // 2, memory // 2)
        # Engines and Linux take 0 for "as much as you like".
        return cls(max(1, temporary), shared_memory or max(1, shared))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one kernel: bytes of memory, thousandths of processors (None: no limit), number of tasks."""

    memory: int | None
    cpu: int | None
    tasks: int

    @classmethod
    def of(cls, slots: Mapping[str, int], tasks: int) -> Limits:
        """Returns the limits that go with an attempt's slots."""
        return cls(slots.get(MEMORY), slots.get(CPU), tasks)


THREAD_VARIABLES = (
    # OpenMP, and `nproc`; the libraries of linear algebra; NumExpr.
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    # Go before 1.25; Rust's rayon; `os.cpu_count` from Python 3.13 on.
    *("GOMAXPROCS", "RAYON_NUM_THREADS", "PYTHON_CPU_COUNT"),
)
"""Variables of programs that would make a thread for each processor of the node, or as many as it may run on."""


def cores_of(slots: Mapping[str, int]) -> int | None:
    """Returns the number of a kernel's cores, rounded up; None without a limit of processor time."""
    cpu = slots.get(CPU)
    return None if cpu is None else max(1, math.ceil(cpu / 1000))


def thread_variables(slots: Mapping[str, int]) -> dict[str, str]:
    """Returns the variables with the number of a kernel's cores, for what neither the user nor the image sets."""
    cores = cores_of(slots)
    return {} if cores is None else dict.fromkeys(THREAD_VARIABLES, str(cores))


def quota(cpu: int) -> int:
    """Microseconds of processor time per period for so many thousandths of a processor."""
    return max(SMALLEST_QUOTA, cpu * CPU_PERIOD // 1000)


TCP_BUFFERS = "memory.kmem.tcp.limit_in_bytes"
"""Where version 1 has the limit of them; version 2 counts them as memory."""
SMALLEST_BUFFERS = 16 << 20
"""Bytes of buffers of TCP connections that every kernel may have."""


def tcp_buffers(memory: int) -> int:
    """Returns how many bytes the buffers of TCP connections may take in a kernel with so much memory, where Linux
    counts them apart from it: a part of it, as all kernels of a node share what it has for TCP.
    """
    return max(SMALLEST_BUFFERS, memory // 4)


Setting = tuple[str, str, int | str, bool]
"""Controller, file, value, and whether the file must be there."""


def memory_settings(limits: Limits, unified: bool) -> list[Setting]:
    """Returns the settings for the limits of memory, swap space included, and tasks."""
    if unified:
        settings: list[Setting] = [("", "pids.max", limits.tasks, True)]
        if limits.memory is not None:
            settings += [("", "memory.max", limits.memory, True), ("", "memory.swap.max", 0, False)]
        return settings
    settings = [("pids", "pids.max", limits.tasks, True)]
    if limits.memory is not None:
        settings.append(("memory", "memory.limit_in_bytes", limits.memory, True))
        settings.append(("memory", "memory.memsw.limit_in_bytes", limits.memory, False))
        settings.append(("memory", TCP_BUFFERS, tcp_buffers(limits.memory), False))
    return settings


def cpu_settings(cpu: int, unified: bool) -> list[Setting]:
    """Returns the settings for so many thousandths of a processor: a ceiling,
    and a weight for when processors are contended.
    """
    if unified:
        weight = min(10_000, max(1, cpu // 10))
        return [("", "cpu.weight", weight, True), ("", "cpu.max", f"{quota(cpu)} {CPU_PERIOD}", True)]
    return [
        ("cpu", "cpu.shares", max(2, cpu * 1024 // 1000), True),
        ("cpu", "cpu.cfs_period_us", CPU_PERIOD, True),
        ("cpu", "cpu.cfs_quota_us", quota(cpu), True),
    ]
