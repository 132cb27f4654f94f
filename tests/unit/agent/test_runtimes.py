"""An attempt is run as what it is, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import AttemptSpec, Isolation, Phase
from retinue.agent.runtimes import Runtimes
from tests.unit.agent.runtime.fake_runtime import FakeRuntime, State

if TYPE_CHECKING:
    from pathlib import Path

SPEC = AttemptSpec("k.1", "s", "k", 1, "main1")


class OptionalFake(FakeRuntime):
    """A runtime that not every node has."""

    def knows(self, attempt_id: str) -> bool:
        return attempt_id in self.observe()


def runtimes(directory: Path, *isolations: Isolation) -> tuple[Runtimes, dict[Isolation, FakeRuntime]]:
    """Returns native processes and runtimes of these isolations, as one and one by one."""
    others = {isolation: OptionalFake(State(directory / isolation.value)) for isolation in isolations}
    process = FakeRuntime(State(directory / "process"))
    return Runtimes(process, others), {Isolation.PROCESS: process, **others}  # type: ignore[arg-type]


@pytest.mark.parametrize("isolation", [Isolation.PROCESS, Isolation.CONTAINER, Isolation.VM])
async def test_the_isolation_says_who_runs_an_attempt(tmp_path: Path, isolation: Isolation) -> None:
    both, each = runtimes(tmp_path, Isolation.CONTAINER, Isolation.VM)
    # The image says nothing: a virtual machine may have one, too.
    await both.prepare(replace(SPEC, isolation=isolation, image="debian:12"), "")
    assert {known: list(runtime.observe()) for known, runtime in each.items()} == {
        known: ["k.1"] if known is isolation else [] for known in each
    }
    assert both.observe()["k.1"].phase is Phase.CREATED
    await both.mark_attached("k.1")
    assert each[isolation].observe()["k.1"].attached


@pytest.mark.parametrize("isolation", [Isolation.CONTAINER, Isolation.VM, Isolation.OTHER])
async def test_what_a_node_does_not_run_is_declined_once(tmp_path: Path, isolation: Isolation) -> None:
    alone, each = runtimes(tmp_path)
    await alone.prepare(replace(SPEC, isolation=isolation, image="debian:12"), "")
    declined = alone.observe()["k.1"]
    assert (declined.phase, declined.reason) == (Phase.FAILED, "ISOLATION_UNSUPPORTED")
    assert declined.message.startswith("this node does not run ")
    await alone.prepare(replace(SPEC, isolation=isolation, image="debian:12"), "")
    assert alone.observe() == {"k.1": declined}
    await alone.remove("k.1")
    assert not each[Isolation.PROCESS].observe()


@pytest.mark.parametrize("isolation", [Isolation.CONTAINER, Isolation.VM])
def test_what_a_cluster_leaves_is_known_from_the_runtime_that_asks_it(tmp_path: Path, isolation: Isolation) -> None:
    both, each = runtimes(tmp_path, Isolation.CONTAINER, Isolation.VM)
    assert both.capacity is None
    each[isolation].capacity = {"cpu": 0}
    assert both.capacity == {"cpu": 0}
