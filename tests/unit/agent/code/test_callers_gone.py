"""What fails after its caller has gone is no error in the agent's log."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.builds import NodeBuilds
from retinue.agent.code.workspace import Workspace
from retinue.agent.errors import KernelRuntimeError
from retinue.agent.inside.host_work_directory import finished

if TYPE_CHECKING:
    from pathlib import Path


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_language_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unread: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unread.append(context))
    begun, fail, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def start(_workspace: Workspace) -> None:
        begun.set()
        await fail.wait()
        failed.set()
        raise KernelRuntimeError("there is no such language")

    monkeypatch.setattr(Workspace, "_start", start)
    backend: Any = SimpleNamespace(observe=dict)
    context: Any = SimpleNamespace()
    workspace = Workspace(
        backend,
        context,
        attempt_id="a.1",
        language="cobol",
        record=tmp_path / "record.json",
        builds=NodeBuilds(tmp_path),
    )
    try:
        asking = asyncio.create_task(workspace.complete("", 0))
        await begun.wait()
        await _cancel(asking)
        fail.set()
        await failed.wait()
        await asyncio.sleep(0)
        # The next caller replaces the preparation that failed.
        begun.clear()
        with pytest.raises(KernelRuntimeError):
            await workspace.complete("", 0)
        gc.collect()
        await asyncio.sleep(0)
        assert unread == []
    finally:
        await workspace.close()


async def test_a_file_that_cannot_be_written() -> None:
    unread: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unread.append(context))
    begun, fail = threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        fail.wait()
        raise OSError("no space")

    asking = asyncio.create_task(finished(asyncio.to_thread(write)))
    await asyncio.to_thread(begun.wait)
    asking.cancel()
    await asyncio.sleep(0)
    fail.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    del asking
    gc.collect()
    await asyncio.sleep(0)
    assert unread == []
