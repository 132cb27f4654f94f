"""A stand-in for NVIDIA's management library: no machine that runs tests has a GPU to lose."""

from __future__ import annotations

from typing import Any


class Nvml:
    """NVIDIA's management library as it answers on a node with some GPUs (id, memory node, number), or with no driver.

    `lost` are ids of GPUs that answer no more.
    """

    class NVMLError(Exception):
        pass

    def __init__(self, gpus: list[tuple[Any, int | None, int]] | None) -> None:
        self.gpus = gpus
        self.opened = 0
        self.lost: set[str] = set()
        # What is lost stays so for who has the driver open.
        self._lost: set[str] = set()

    def nvmlInit(self) -> None:
        if self.gpus is None:
            raise self.NVMLError("Driver Not Loaded")
        assert not self.opened, "is opened twice"
        self.opened += 1
        self._lost = set()

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus or ())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        assert self.gpus is not None
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: Any) -> Any:
        return handle[0]

    def nvmlDeviceGetNumaNodeId(self, handle: Any) -> int:
        if handle[1] is None:
            raise self.NVMLError("Not Supported")
        return int(handle[1])

    def nvmlDeviceGetHandleByUUID(self, identifier: str) -> Any:
        for gpu in self.gpus or ():
            if gpu[0] == identifier:
                return gpu
        raise self.NVMLError("Not Found")

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return type("Rates", (), {"gpu": handle[2]})

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        self._lost |= self.lost
        if handle[0] in self._lost:
            raise self.NVMLError("GPU is lost")
        return type("Memory", (), {"total": handle[2]})
