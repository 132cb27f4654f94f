"""Workspaces of kernels that have ended are closed although no code is run any more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.attempts import Phase
from agent.code import workspaces
from agent.code.workspaces import Workspaces


class FakeWorkspace:
    """Counts those that are open."""

    open = 0

    def __init__(self, *_: object, **__: object) -> None:
        FakeWorkspace.open += 1

    async def close(self) -> None:
        await asyncio.sleep(0)
        FakeWorkspace.open -= 1


async def test_a_workspace_goes_with_its_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workspaces, "Workspace", FakeWorkspace)
    monkeypatch.setattr(workspaces, "SWEEP_SECONDS", 0.0)
    attempts = {"a.1": SimpleNamespace(phase=Phase.RUNNING), "b.1": SimpleNamespace(phase=Phase.RUNNING)}
    backend: Any = SimpleNamespace(observed=lambda: attempts)
    found = Workspaces(backend, tmp_path / "code", tmp_path)
    await found.find("a.1", "python")
    await found.find("b.1", "python")
    sweeping = asyncio.create_task(found.keep_swept())
    try:
        del attempts["a.1"]
        async with asyncio.timeout(10):
            while FakeWorkspace.open > 1:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert FakeWorkspace.open == 1
        attempts["b.1"] = SimpleNamespace(phase=Phase.EXITED)
        async with asyncio.timeout(10):
            while FakeWorkspace.open:
                await asyncio.sleep(0)
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await found.close()
