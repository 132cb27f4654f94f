"""Readers of runs learn that the kernel has ended, whether their run is executed, waits, or waits for Jupyter."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from retinue.agent.attempts import Phase
from retinue.agent.builds import NodeBuilds
from retinue.agent.code.core.events import Event, Finished, Queued, RunRequest, Started, Status
from retinue.agent.code.jupyter import Execution
from retinue.agent.code.workspace import Workspace
from retinue.agent.errors import KernelRuntimeError, NotRunningError
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.agent.code.runs import Run


class Node:
    """One attempt, and the Jupyter kernel in it."""

    def __init__(self) -> None:
        self.phase = Phase.RUNNING
        self.lost = asyncio.Event()
        self.may_start = asyncio.Event()
        self.starting = asyncio.Event()
        self.executing = asyncio.Event()

    def observe(self) -> dict[str, Any]:
        return {"a.1": SimpleNamespace(phase=self.phase)}

    async def start(self, workspace: Any) -> Node:
        self.starting.set()
        await self.may_start.wait()
        if self.phase is not Phase.RUNNING:
            raise KernelRuntimeError("the kernel did not answer")
        workspace._jupyter, workspace._record = self, SimpleNamespace(by_message=True)  # noqa: SLF001  # as `_start` does
        return self

    async def execute(self, run: Run, code: str) -> Execution:
        del run, code
        self.executing.set()
        return Execution()

    def forget(self, run: Run) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture
def node() -> Node:
    return Node()


@pytest_asyncio.fixture
async def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node: Node) -> AsyncIterator[Workspace]:
    monkeypatch.setattr(Workspace, "_start", lambda made: node.start(made))  # noqa: PLW0108  # a method
    runtime: Any = node
    context: Any = SimpleNamespace()
    made = Workspace(
        runtime, context, attempt_id="a.1", language="python", record=tmp_path / "r.json", builds=NodeBuilds(tmp_path)
    )
    async with asyncio.timeout(NEVER):
        yield made
        await made.close()


async def read(run: Run) -> list[Event]:
    """The events of a run; its failure is raised."""
    return [item.event async for pieces in run.read(0) for item in pieces]


async def two_runs(workspace: Workspace, node: Node) -> tuple[Run, Run]:
    """One that is executed, and one that waits behind it."""
    node.may_start.set()
    first = await workspace.add(RunRequest("r", "code"))
    await node.executing.wait()
    return first, await workspace.add(RunRequest("s", "code"))


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.EXITED])
async def test_the_kernel_ends(workspace: Workspace, node: Node, phase: Phase) -> None:
    runs = await two_runs(workspace, node)
    readers = [asyncio.create_task(read(run)) for run in runs]
    node.phase = phase
    node.lost.set()
    for reader in readers:
        with pytest.raises(NotRunningError):
            await reader


async def test_its_processes_are_gone_before_its_end_is_observed(workspace: Workspace, node: Node) -> None:
    run, _ = await two_runs(workspace, node)
    reader = asyncio.create_task(read(run))
    node.lost.set()
    await asyncio.sleep(0)
    node.phase = Phase.EXITED
    with pytest.raises(NotRunningError):
        await reader


async def test_the_workspace_is_closed_first(workspace: Workspace, node: Node) -> None:
    runs = await two_runs(workspace, node)
    readers = [asyncio.create_task(read(run)) for run in runs]
    await workspace.close()
    for reader in readers:
        with pytest.raises(NotRunningError):
            await reader
    # What had happened is still there.
    assert [type(item.event) for item in await anext(runs[0].read(0))] == [Started]
    assert [item.event for item in await anext(runs[1].read(0))] == [Queued(1)]


async def test_jupyter_is_still_starting(workspace: Workspace, node: Node) -> None:
    adding = asyncio.create_task(workspace.add(RunRequest("r", "code")))
    completing = asyncio.create_task(workspace.complete("x", 1))
    await node.starting.wait()
    node.phase = Phase.EXITED
    node.may_start.set()
    for asked in (adding, completing):
        with pytest.raises(NotRunningError):
            await asked


async def test_the_workspace_is_closed_while_jupyter_is_starting(workspace: Workspace, node: Node) -> None:
    adding = asyncio.create_task(workspace.add(RunRequest("r", "code")))
    await node.starting.wait()
    await workspace.close()
    with pytest.raises(NotRunningError):
        await adding


async def test_a_process_that_is_lost_alone_is_reported_as_that(workspace: Workspace, node: Node) -> None:
    run, _ = await two_runs(workspace, node)
    node.lost.set()
    assert (await read(run))[-1] == Finished(Status.PROCESS_LOST, exit_code=1)
