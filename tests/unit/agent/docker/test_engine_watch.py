"""When an engine counts as unresponsive."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from retinue.agent.conditions import Conditions
from retinue.agent.docker import engine as docker_engine
from retinue.agent.docker.engine import Engine, EngineError, watch_engine
from retinue.rpc.core.reasons import AgentConditionType
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Asked(Engine):
    """Answers, refuses, or hangs."""

    def __init__(self) -> None:
        super().__init__("unix:///none")
        self.error: EngineError | None = None
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def check(self) -> None:
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def watched(engine: Asked, conditions: Conditions) -> AsyncIterator[None]:
    watching = asyncio.create_task(watch_engine(engine, conditions))
    try:
        yield
    finally:
        # Ends while a call hangs, without waiting for it.
        engine.answers.clear()
        asked = engine.asked
        await eventually(lambda: watching.done() or engine.asked > asked)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(docker_engine, "UNRESPONSIVE_AFTER", 0.05)


@pytest.mark.parametrize("fault", ["hangs", "refuses"])
async def test_an_engine_that_does_not_answer_is_reported_until_it_does(fault: str) -> None:
    engine, conditions = Asked(), Conditions()
    async with watched(engine, conditions):
        if fault == "hangs":
            engine.answers.clear()
        else:
            engine.error = EngineError("no")
        await eventually(lambda: [each.type for each in conditions.all()] == [AgentConditionType.ENGINE_UNRESPONSIVE])
        engine.error = None
        engine.answers.set()
        await eventually(lambda: conditions.all() == ())


async def test_refusals_count_from_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(docker_engine, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(docker_engine, "UNRESPONSIVE_AFTER", 100.0)
    engine, conditions = Asked(), Conditions()

    async def ask_again() -> None:
        asked = engine.asked
        await eventually(lambda: engine.asked > asked + 2)

    async with watched(engine, conditions):
        await ask_again()
        now[0] = 1000.0
        await ask_again()
        engine.error = EngineError("no")
        await ask_again()
        now[0] = 1099.0
        await ask_again()
        assert conditions.all() == ()
        now[0] = 1100.0
        await eventually(lambda: conditions.all() != ())
        engine.error = None


async def test_a_call_that_takes_long_is_not_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "UNRESPONSIVE_AFTER", 3600.0)
    engine, conditions = Asked(), Conditions()
    engine.answers.clear()
    async with watched(engine, conditions):
        await eventually(lambda: engine.asked == 1)
        # A report would be there after a few turns of the loop.
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert conditions.all() == ()
        engine.answers.set()
