"""Workspaces go with their kernels, and those in which nothing was started with the last stream;
only languages in use are counted.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.builds import NodeBuilds
from retinue.agent.code import workspaces
from retinue.agent.code.workspaces import MAX_LANGUAGES, TooManyLanguagesError, Workspaces
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


class FakeWorkspace:
    """Counts those that are open."""

    open = 0

    def __init__(self, *_: object, admit: Callable[[], None], **__: object) -> None:
        FakeWorkspace.open += 1
        self.streams = 0
        self.in_use = False
        self._admit = admit

    def start(self) -> None:
        self._admit()
        self.in_use = True

    async def close(self) -> None:
        await asyncio.sleep(0)
        FakeWorkspace.open -= 1


async def test_a_workspace_goes_with_its_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workspaces, "Workspace", FakeWorkspace)
    monkeypatch.setattr(workspaces, "SWEEP_SECONDS", 0.0)
    attempts = {
        "a.1": SimpleNamespace(phase=Phase.RUNNING, pause=None),
        "b.1": SimpleNamespace(phase=Phase.RUNNING, pause=None),
    }
    backend: Any = SimpleNamespace(observe=lambda: attempts)
    found = Workspaces(backend, tmp_path / "code", NodeBuilds(tmp_path))
    for attempt_id in attempts:
        async with found.open(attempt_id, "python") as workspace:
            cast("FakeWorkspace", workspace).start()
    sweeping = asyncio.create_task(found.keep_swept())
    try:
        del attempts["a.1"]
        async with asyncio.timeout(NEVER):
            while FakeWorkspace.open > 1:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert FakeWorkspace.open == 1
        attempts["b.1"] = SimpleNamespace(phase=Phase.EXITED)
        async with asyncio.timeout(NEVER):
            while FakeWorkspace.open:
                await asyncio.sleep(0)
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await found.close()


@pytest.fixture
async def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Workspaces]:
    """Workspaces of one kernel that runs, a.1."""
    monkeypatch.setattr(workspaces, "Workspace", FakeWorkspace)
    backend: Any = SimpleNamespace(observe=lambda: {"a.1": SimpleNamespace(phase=Phase.RUNNING, pause=None)})
    found = Workspaces(backend, tmp_path / "code", NodeBuilds(tmp_path))
    yield found
    await found.close()
    assert FakeWorkspace.open == 0


async def start(found: Workspaces, language: str) -> None:
    async with found.open("a.1", language) as workspace:
        cast("FakeWorkspace", workspace).start()


async def test_misspelled_languages_keep_no_other_from_being_used(found: Workspaces) -> None:
    for number in range(3 * MAX_LANGUAGES):
        async with found.open("a.1", f"pyhton{number}"):
            pass
    assert FakeWorkspace.open == 0
    await start(found, "python")
    assert FakeWorkspace.open == 1


async def test_streams_that_start_nothing_keep_no_language_from_being_used(found: Workspaces) -> None:
    async with AsyncExitStack() as streams:
        for number in range(3 * MAX_LANGUAGES):
            await streams.enter_async_context(found.open("a.1", f"pyhton{number}"))
        await start(found, "python")


async def test_only_so_many_languages_are_in_use(found: Workspaces) -> None:
    for number in range(MAX_LANGUAGES):
        await start(found, f"language{number}")
    with pytest.raises(TooManyLanguagesError):
        await start(found, "python")
    await start(found, "LANGUAGE0")
    assert FakeWorkspace.open == MAX_LANGUAGES


async def test_a_workspace_stays_as_long_as_a_stream_has_it_open(found: Workspaces) -> None:
    async with found.open("a.1", "python") as first:
        async with found.open("a.1", "Python") as second:
            assert second is first
        assert FakeWorkspace.open == 1
