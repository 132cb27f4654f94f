"""The cores of this node by memory node, and its GPUs."""

from __future__ import annotations

import contextlib
import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from retinue.agent.resources.core.holdings import Gpu

log = logging.getLogger(__name__)


def cores_by_node(
    system: Path = Path("/sys/devices/system/node"), allowed: set[int] | None = None
) -> dict[int, list[int]]:
    """Cores this process may use, by memory node; all on one where the system reports none."""
    usable = os.sched_getaffinity(0) if allowed is None else allowed
    found: dict[int, list[int]] = {}
    for place in sorted(system.glob("node[0-9]*"), key=lambda place: int(place.name.removeprefix("node"))):
        cores = parse_list((place / "cpulist").read_text())
        if here := [core for core in cores if core in usable]:
            found[int(place.name.removeprefix("node"))] = here
    return found or {0: sorted(usable)}


def parse_list(text: str) -> list[int]:
    """Returns the numbers from the kernel's `0-3,8`."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def find_gpus(nvml: Any = None) -> list[Gpu]:
    """Returns NVIDIA's GPUs of this node; none where there is no driver. `nvml` is the module to ask, by default `pynvml`."""
    if nvml is None:
        try:
            nvml = import_module("pynvml")
        except ImportError:
            return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.debug("no NVIDIA driver answers: %s", error)
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [_gpu(nvml, handle) for handle in handles]
    except nvml.NVMLError as error:
        log.warning("GPUs cannot be listed: %s", error)
        return []
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    identifier = nvml.nvmlDeviceGetUUID(handle)
    name = identifier.decode() if isinstance(identifier, bytes) else str(identifier)
    try:
        node = int(nvml.nvmlDeviceGetNumaNodeId(handle))
    except (nvml.NVMLError, AttributeError):
        node = -1
    return Gpu(name, node, int(nvml.nvmlDeviceGetMemoryInfo(handle).total))
