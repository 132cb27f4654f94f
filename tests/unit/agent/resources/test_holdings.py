"""Cores and GPUs of a node: nothing is held twice, neighbours come first, and what was held is found again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.attempts import Phase
from retinue.agent.docker.core.container_spec import devices
from retinue.agent.resources.core.allocation import InsufficientError, choose_cores
from retinue.agent.resources.core.holdings import Gpu, Holding, Holdings
from retinue.agent.resources.discovery import cores_by_node, parse_list
from retinue.agent.runtime.attempt_records import Record, decode, encode

if TYPE_CHECKING:
    from pathlib import Path

CORES = {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}
GPUS = (Gpu("GPU-a", 0), Gpu("GPU-b", 1), Gpu("GPU-c", 1))


def test_whole_cores_are_held_near_each_other() -> None:
    node = Holdings(CORES)
    assert node.take("a", {"cpu": 3000}).cores == (0, 1, 2)
    # One is left on node 0, and takes it: node 1 stays whole for those who need more.
    assert node.take("b", {"cpu": 1000}).cores == (3,)
    assert node.take("c", {"cpu": 4000}).cores == (4, 5, 6, 7)
    assert node.take("c", {"cpu": 4000}).cores == (4, 5, 6, 7)
    # A share of a core is a limit of time only, and so is what is not there.
    assert node.take("d", {"cpu": 500}) == node.take("e", {"cpu": 1000}) == Holding()
    node.release("a")
    assert node.take("f", {"cpu": 2000}).cores == (0, 1)
    node.release("nobody")


def test_gpus_are_never_shared_and_bring_the_cores_near_them() -> None:
    node = Holdings(CORES, GPUS)
    held = node.take("a", {"cpu": 2000, "cuda.device": 2000})
    assert held == Holding((4, 5), ("GPU-b", "GPU-c"))
    with pytest.raises(InsufficientError, match="2 GPUs asked for, 1 left"):
        node.take("b", {"cuda.device": 2000})
    assert node.take("b", {"cuda.device": 1000}).gpus == ("GPU-a",)
    again = Holdings(CORES, GPUS)
    again.restore("a", decode(encode(Record("a", "", "a", "boot", cores=held.cores, gpus=held.gpus))).holding)
    assert again.take("b", {"cuda.device": 1000}).gpus == ("GPU-a",)
    assert decode(encode(Record("a", "", "a", "boot"))).phase is Phase.CREATING


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.integers(0, 3), st.booleans()), max_size=30))
def test_nothing_is_held_twice(steps: list[tuple[str, int, int, bool]]) -> None:
    node = Holdings(CORES, GPUS)
    held: dict[str, Holding] = {}
    for name, cores, gpus, give_back in steps:
        if give_back:
            node.release(name)
            held.pop(name, None)
            continue
        try:
            held[name] = node.take(name, {"cpu": 1000 * cores, "cuda.device": 1000 * gpus})
        except InsufficientError:
            assert gpus > 3 - sum(len(holding.gpus) for holding in held.values())
        for kind in ("cores", "gpus"):
            taken = [item for holding in held.values() for item in getattr(holding, kind)]
            assert len(taken) == len(set(taken))


def test_many_cores_span_as_few_nodes_as_can_be() -> None:
    free = {0: [0], 1: [4, 5, 6, 7], 2: [8, 9]}
    assert choose_cores(free, 5) == (0, 4, 5, 6, 7)
    assert choose_cores(free, 2) == (8, 9)
    assert choose_cores(free, 2, near=[1]) == (4, 5)
    assert choose_cores(free, 8) is None
    assert choose_cores(free, 0) == ()


def test_what_a_container_is_given() -> None:
    assert devices(Holding()) == {}
    assert devices(Holding((0, 2), ("GPU-a",))) == {
        "CpusetCpus": "0,2",
        "DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": ["GPU-a"], "Capabilities": [["gpu"]]}],
    }


def test_nodes_of_memory(tmp_path: Path) -> None:
    assert cores_by_node(tmp_path, {1, 0}) == {0: [0, 1]}
    for number, cores in ((0, "0-1,4\n"), (1, "2-3\n"), (10, "\n")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cores)
    assert cores_by_node(tmp_path, {0, 2, 3, 4}) == {0: [0, 4], 1: [2, 3]}
    assert parse_list("") == []
    assert sum(map(len, cores_by_node().values())) > 0
