"""An interrupt is kept until the code that it is for heeds it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from retinue.agent.builds import NodeBuilds
from retinue.agent.code import workspace as module
from retinue.agent.code.core.events import Finished, RunRequest, Started, Status
from retinue.agent.code.jupyter import Execution
from retinue.agent.code.workspace import Workspace
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.agent.code.runs import Run


class SlowKernel:
    """A Jupyter kernel that starts and executes code when it is let, and ends a run that it is interrupted in."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.starting = asyncio.Event()
        self.let_start = asyncio.Event()
        self.execution: Execution | None = None
        self.executing = asyncio.Event()
        self.interrupts = 0
        self.interrupted = asyncio.Event()

    async def execute(self, run: Run, code: str) -> Execution:
        del run, code
        self.execution = Execution()
        self.executing.set()
        return self.execution

    async def interrupt(self) -> None:
        self.interrupts += 1
        self.interrupted.set()
        if self.execution is not None and self.execution.begun.is_set():
            self.execution.done.set()

    def result(self, run: Run) -> Finished:
        return Finished(run.interrupted or Status.OK)

    def forget(self, run: Run) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture
def kernel() -> SlowKernel:
    return SlowKernel()


@pytest_asyncio.fixture
async def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: SlowKernel) -> AsyncIterator[Workspace]:
    async def start(made: Any) -> SlowKernel:
        kernel.starting.set()
        await kernel.let_start.wait()
        made._jupyter, made._record = kernel, SimpleNamespace(by_message=True)  # noqa: SLF001  # as `_start` does
        return kernel

    monkeypatch.setattr(Workspace, "_start", start)
    runtime: Any = SimpleNamespace(observe=dict)
    context: Any = SimpleNamespace()
    made = Workspace(
        runtime, context, attempt_id="a.1", language="python", record=tmp_path / "r.json", builds=NodeBuilds(tmp_path)
    )
    try:
        yield made
    finally:
        await made.close()


async def events(run: Run) -> list[object]:
    """The events of a run, to its end."""
    async with asyncio.timeout(NEVER):
        return [item.event async for pieces in run.read(0) for item in pieces]


@pytest.mark.parametrize("named", [False, True])
async def test_an_interrupt_while_the_kernel_starts_ends_the_run(
    workspace: Workspace, kernel: SlowKernel, named: bool
) -> None:
    adding = asyncio.create_task(workspace.add(RunRequest("r", "code")))
    await kernel.starting.wait()
    arriving = workspace.find("r") if named else workspace.current()
    assert arriving is not None
    workspace.interrupt(arriving)
    kernel.let_start.set()
    assert await events(await adding) == [Finished(Status.INTERRUPTED, exit_code=1)]
    following = await workspace.add(RunRequest("s", "code"))
    await kernel.executing.wait()
    assert workspace.current() is following


async def test_an_interrupt_before_the_code_begins_is_delivered_when_it_begins(
    workspace: Workspace, kernel: SlowKernel
) -> None:
    kernel.let_start.set()
    run = await workspace.add(RunRequest("r", "code"))
    await kernel.executing.wait()
    workspace.interrupt(run)
    for _ in range(10):
        await asyncio.sleep(0)
    assert kernel.interrupts == 0
    assert kernel.execution is not None
    kernel.execution.begun.set()
    assert await events(run) == [Started(), Finished(Status.INTERRUPTED)]
    assert kernel.interrupts == 1


async def test_a_kernel_that_does_not_report_the_beginning_is_interrupted_all_the_same(
    workspace: Workspace, kernel: SlowKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEGIN_TIMEOUT", 0.0)
    kernel.let_start.set()
    run = await workspace.add(RunRequest("r", "code"))
    await kernel.executing.wait()
    workspace.interrupt(run)
    async with asyncio.timeout(NEVER):
        await kernel.interrupted.wait()
    assert kernel.execution is not None
    # It reports it late: the interrupt came too early, and is sent again.
    kernel.execution.begun.set()
    assert await events(run) == [Started(), Finished(Status.INTERRUPTED)]
    assert kernel.interrupts == 2
