"""GPUs by NVIDIA's driver: which answer, which are offered, and how busy they are."""

from __future__ import annotations

import pytest

from retinue.agent.conditions import Conditions
from retinue.agent.resources.core.allocation import InsufficientError
from retinue.agent.resources.core.holdings import Gpu, Holdings
from retinue.agent.resources.discovery import Node, capacity
from retinue.agent.resources.gpus import Driver, GpuUse, GpuWatch, list_gpus
from tests.support.nvml import Nvml

ONE, TWO = {"cuda.device": 1000}, {"cuda.device": 2000}


def test_gpus_by_nvml() -> None:
    table = Nvml([(b"GPU-a", 1, 80), ("GPU-b", None, 40)])
    driver = Driver(table)
    for _ in range(2):
        assert list_gpus(driver).gpus == (Gpu("GPU-a", 1, 80), Gpu("GPU-b", -1, 40))
    assert table.opened == 1
    driver.close()
    assert table.opened == 0
    assert list_gpus(Driver(Nvml(None))).gpus == ()
    # This machine's own, whatever it has; without a driver there are none.
    assert all(gpu.id for gpu in list_gpus(Driver()).gpus)


class Watched:
    """A node with two GPUs, and what it offers and says."""

    def __init__(self) -> None:
        self.table = Nvml([("GPU-a", 0, 80), ("GPU-b", 0, 80)])
        self.holdings = Holdings()
        self.conditions = Conditions()
        self.watch = GpuWatch(Driver(self.table), self.holdings, self.conditions)
        self.look()

    def look(self) -> bool:
        return self.watch.take(self.watch.look())

    @property
    def offered(self) -> int:
        return capacity(Node(1, 1, "x", "b", self.watch.count), {}, {}).get("cuda.device", 0)

    @property
    def words(self) -> list[str]:
        return [f"{condition.type}: {condition.message}" for condition in self.conditions.all()]


def test_a_lost_gpu_is_not_offered_until_it_is_back() -> None:
    node = Watched()
    assert (node.offered, node.words, node.look()) == (2000, [], False)
    node.table.lost = {"GPU-a"}
    assert node.look()
    assert (node.offered, node.words) == (1000, ["DEVICE_LOST: GPU-a does not answer: GPU is lost"])
    assert node.holdings.take("k", ONE).gpus == ("GPU-b",)
    node.holdings.release("k")
    with pytest.raises(InsufficientError):
        node.holdings.take("k", TWO)
    assert not node.look()
    node.table.lost = set()
    assert node.look()
    assert (node.offered, node.words) == (2000, [])
    assert node.holdings.take("k", TWO).gpus == ("GPU-a", "GPU-b")


def test_the_other_gpu_is_offered_while_a_kernel_holds_the_lost_one() -> None:
    node = Watched()
    (held,) = node.holdings.take("k1", ONE).gpus
    node.table.lost = {held}
    node.look()
    # One of them is that of k1, as the manager counts.
    assert node.offered == 2000
    assert node.holdings.take("k2", ONE).gpus != (held,)
    node.holdings.release("k1")
    assert node.offered == 1000


def test_gpus_that_fall_off_the_bus_or_come_late_are_noticed() -> None:
    node = Watched()
    gpus, node.table.gpus = node.table.gpus, []
    node.look()
    assert (node.offered, node.words) == (0, ["DEVICE_LOST: GPU-a is gone; GPU-b is gone"])
    node.table.gpus = None
    node.look()
    assert node.offered == 0
    assert gpus is not None
    node.table.gpus = [*gpus, ("GPU-c", 0, 80)]
    node.look()
    assert (node.offered, node.words) == (3000, [])


def test_no_more_gpus_are_offered_than_there_are() -> None:
    asked = {"cuda.device": 4000, "licences": 4000}
    assert capacity(Node(1, 1, "x", "b", 2), {}, asked)["cuda.device"] == 2000
    assert capacity(Node(1, 1, "x", "b", 0), {}, asked)["cuda.device"] == 0
    assert capacity(Node(1, 1, "x", "b", 8), {}, asked) == {"cpu": 1000, "mem": 1, **asked}
    # What a cluster says of its node counts there.
    assert capacity(Node(1, 1, "x", "b", 8), {}, asked, {"cuda.device": 1000}) == {**asked, "cuda.device": 1000}
    # Kernels that do nothing have as many as wanted.
    assert capacity(Node(1, 1, "x", "b"), {}, asked)["cuda.device"] == 4000


def test_the_use_of_gpus_is_the_mean_of_those_that_an_attempt_holds() -> None:
    held = {"a": ("GPU-a", "GPU-b"), "b": ("GPU-b",), "c": ("GPU-lost",), "d": ()}
    use = GpuUse(held.__getitem__, Driver(Nvml([("GPU-a", 1, 80), ("GPU-b", None, 40)])))
    assert use.read(held) == {"a": 60.0, "b": 40.0}
    assert GpuUse(held.__getitem__, Driver(Nvml(None))).read(held) == {}
