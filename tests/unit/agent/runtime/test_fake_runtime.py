"""The runtime in memory passes the suite that every runtime passes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import AttemptSpec, ObservedAttempt, Phase
from tests.support.eventually import NEVER
from tests.support.runtime_contract import *  # noqa: F403  # the tests
from tests.unit.agent.runtime.fake_runtime import FakeRuntime, State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class FakeHarness:
    """Opens runtimes in memory over one state."""

    def __init__(self, directory: Path) -> None:
        self._state = State(directory)
        self._changed = asyncio.Event()
        self.current: FakeRuntime | None = None

    async def open(self) -> FakeRuntime:
        if self.current is not None:
            await self.current.close()
        self.current = FakeRuntime(self._state)
        await self.current.open(self._changed.set)
        return self.current

    def spec(self, name: str, *command: str) -> AttemptSpec:
        return AttemptSpec(f"{name}.1", "session", name, 1, "main1", command=command)

    async def until(self, attempt_id: str, *phases: Phase) -> ObservedAttempt:
        async with asyncio.timeout(NEVER):
            while (observed := self._state.attempts[attempt_id]).phase not in phases:
                self._changed.clear()
                await self._changed.wait()
        return observed


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[FakeHarness]:
    harness = FakeHarness(tmp_path)
    yield harness
    if harness.current is not None:
        await harness.current.close()
