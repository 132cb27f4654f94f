"""NVIDIA's GPUs of this node: which of them answer, which are offered, and how busy they are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from retinue.agent.resources.core.holdings import Gpu
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from retinue.agent.conditions import Conditions
    from retinue.agent.resources.core.holdings import Holdings

_log = logging.getLogger(__name__)

INTERVAL = 15.0
"""Seconds between two looks at the GPUs."""


class Driver:
    """NVIDIA's driver of this node. It stays open, as opening takes far longer than a reading. Methods block."""

    def __init__(self, nvml: Any = None) -> None:
        """`nvml` is the module to ask, by default `pynvml`."""
        self._nvml = nvml
        self._open = False
        self._lock = threading.Lock()

    def opened(self) -> Any:
        """Returns the module once its driver answers; None without one."""
        with self._lock:
            if self._nvml is None:
                try:
                    self._nvml = import_module("pynvml")
                except ImportError:
                    return None
            if not self._open:
                try:
                    self._nvml.nvmlInit()
                except self._nvml.NVMLError as error:
                    _log.debug("no NVIDIA driver answers: %s", error)
                    return None
                self._open = True
            return self._nvml

    def close(self) -> None:
        """Has the next call open the driver again: to who has it open, a lost GPU stays lost."""
        with self._lock:
            if self._open:
                self._open = False
                with contextlib.suppress(self._nvml.NVMLError):
                    self._nvml.nvmlShutdown()


@dataclass(frozen=True, slots=True)
class GpuListing:
    """The GPUs of this node that answer, and what is wrong with others, in words by what they are called."""

    gpus: tuple[Gpu, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)


def list_gpus(driver: Driver) -> GpuListing:
    """Returns NVIDIA's GPUs of this node; none where there is no driver. Blocks."""
    if (nvml := driver.opened()) is None:
        return GpuListing()
    gpus: list[Gpu] = []
    faults: dict[str, str] = {}
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            name = f"GPU {index}"
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                name = _id(nvml, handle)
                gpus.append(_gpu(nvml, handle, name))
            except nvml.NVMLError as error:
                faults[name] = str(error)
    except nvml.NVMLError as error:
        faults["driver"] = str(error)
    return GpuListing(tuple(gpus), faults)


class GpuWatch:
    """Has the node offer the GPUs that answer, and no others, and keeps the condition DEVICE_LOST."""

    def __init__(self, driver: Driver, holdings: Holdings, conditions: Conditions) -> None:
        """Looks at nothing yet."""
        self._driver = driver
        self._holdings = holdings
        self._conditions = conditions
        self._known: set[str] = set()

    @property
    def count(self) -> int:
        """Returns how many GPUs are offered now."""
        return self._holdings.gpu_count

    def look(self) -> GpuListing:
        """Returns the GPUs as they are now. Blocks."""
        listing = list_gpus(self._driver)
        if self._lost(listing):
            self._driver.close()
        return listing

    def take(self, listing: GpuListing) -> bool:
        """Offers the GPUs of a listing from now on; returns whether they are others than before."""
        lost = self._lost(listing)
        changes = list(self._holdings.gpus) != list(listing.gpus)
        self._holdings.gpus = listing.gpus
        self._known |= {gpu.id for gpu in listing.gpus}
        message = "; ".join(f"{name} {why}" for name, why in sorted(lost.items()))
        self._conditions.update(AgentConditionType.DEVICE_LOST, message)
        if changes and lost:
            _log.error("GPUs are not offered: %s", message)
        return changes

    async def run(self, changed: Callable[[], None]) -> None:
        """Looks every now and then until it is cancelled; calls `changed` when other GPUs are offered than before."""
        while True:
            await asyncio.sleep(INTERVAL)
            if self.take(await asyncio.to_thread(self.look)):
                changed()

    def _lost(self, listing: GpuListing) -> dict[str, str]:
        missing = self._known - {gpu.id for gpu in listing.gpus} - listing.faults.keys()
        found = {name: f"does not answer: {why}" for name, why in listing.faults.items()}
        return found | dict.fromkeys(missing, "is gone")


class GpuUse:
    """The use of NVIDIA's GPUs by the attempts that hold them."""

    def __init__(self, gpus_of: Callable[[str], Sequence[str]], driver: Driver) -> None:
        """`gpus_of` returns the ids of an attempt's GPUs."""
        self._gpus_of = gpus_of
        self._driver = driver

    def read(self, attempt_ids: Iterable[str]) -> dict[str, float]:
        """Returns the percentage of time in which the GPUs of attempts were busy, the mean of all of one;
        what cannot be read is left out.
        """
        held = {attempt_id: gpus for attempt_id in attempt_ids if (gpus := self._gpus_of(attempt_id))}
        found: dict[str, float] = {}
        if held and (nvml := self._driver.opened()) is not None:
            for attempt_id, gpus in held.items():
                try:
                    busy = [_busy(nvml, gpu) for gpu in gpus]
                except (nvml.NVMLError, AttributeError) as error:
                    _log.debug("the use of GPUs of attempt %s cannot be read: %s", attempt_id, error)
                    continue
                found[attempt_id] = sum(busy) / len(busy)
        return found


def _busy(nvml: Any, gpu: str) -> float:
    return float(nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByUUID(gpu)).gpu)


def _id(nvml: Any, handle: Any) -> str:
    identifier = nvml.nvmlDeviceGetUUID(handle)
    return identifier.decode() if isinstance(identifier, bytes) else str(identifier)


def _gpu(nvml: Any, handle: Any, name: str) -> Gpu:
    # First: it asks the device itself, of which the rest may be remembered.
    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    try:
        node = int(nvml.nvmlDeviceGetNumaNodeId(handle))
    except (nvml.NVMLError, AttributeError):
        node = -1
    return Gpu(name, node, memory)
