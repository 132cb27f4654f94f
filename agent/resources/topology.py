"""The cores of this node by memory node, and its GPUs."""

from __future__ import annotations

import contextlib
import logging
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.agent.resources.core.holdings import Gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

log = logging.getLogger(__name__)


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


def find_gpus(nvml: Any = None) -> list[Gpu]:
    """Returns NVIDIA's GPUs of this node; none where there is no driver.
    `nvml` is the module to ask, by default `pynvml`.
    """
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


class GpuUse:
    """The use of NVIDIA's GPUs by the attempts that hold them, from the first that holds one on."""

    def __init__(self, gpus_of: Callable[[str], Sequence[str]], nvml: Any = None) -> None:
        """`gpus_of` returns the ids of an attempt's GPUs; `nvml` is the module to ask, by default `pynvml`."""
        self._gpus_of = gpus_of
        self._nvml = nvml
        self._begun = False

    def read(self, attempt_ids: Iterable[str]) -> dict[str, float]:
        """Returns the percentage of time in which the GPUs of attempts were busy, the mean of all of one;
        what cannot be read is left out.
        """
        held = {attempt_id: gpus for attempt_id in attempt_ids if (gpus := self._gpus_of(attempt_id))}
        found: dict[str, float] = {}
        if held and (nvml := self._module()) is not None:
            for attempt_id, gpus in held.items():
                try:
                    busy = [_busy(nvml, gpu) for gpu in gpus]
                except (nvml.NVMLError, AttributeError) as error:
                    log.debug("the use of GPUs of attempt %s cannot be read: %s", attempt_id, error)
                    continue
                found[attempt_id] = sum(busy) / len(busy)
        return found

    def _module(self) -> Any:
        """Returns the module once its driver answers; it stays open, as opening takes far longer than a reading."""
        if self._nvml is None:
            try:
                self._nvml = import_module("pynvml")
            except ImportError:
                return None
        if not self._begun:
            try:
                self._nvml.nvmlInit()
            except self._nvml.NVMLError as error:
                log.debug("no NVIDIA driver answers: %s", error)
                return None
            self._begun = True
        return self._nvml


def _busy(nvml: Any, gpu: str) -> float:
    return float(nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByUUID(gpu)).gpu)


def _gpu(nvml: Any, handle: Any) -> Gpu:
    identifier = nvml.nvmlDeviceGetUUID(handle)
    name = identifier.decode() if isinstance(identifier, bytes) else str(identifier)
    try:
        node = int(nvml.nvmlDeviceGetNumaNodeId(handle))
    except (nvml.NVMLError, AttributeError):
        node = -1
    return Gpu(name, node, int(nvml.nvmlDeviceGetMemoryInfo(handle).total))
