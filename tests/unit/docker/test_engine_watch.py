"""When an engine counts as unresponsive."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from retinue.agent.conditions import Conditions, ConditionType
from retinue.agent.docker import engine_watch
from retinue.agent.docker.engine_watch import watch_engine
from retinue.agent.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class Engine:
    """Answers, refuses, or hangs."""

    def __init__(self) -> None:
        self.error: BackendError | None = None
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()

    def check(self) -> None:
        self.asked += 1
        self.answers.wait()
        if self.error is not None:
            raise self.error


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def watched(engine: Engine, conditions: Conditions) -> AsyncIterator[None]:
    watching = asyncio.create_task(watch_engine(engine, conditions))
    try:
        yield
    finally:
        # Ends while a call hangs: nobody waits for that.
        engine.answers.clear()
        asked = engine.asked
        try:
            await eventually(lambda: watching.done() or engine.asked > asked)
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        finally:
            engine.answers.set()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "INTERVAL", 0.01)
    monkeypatch.setattr(engine_watch, "UNRESPONSIVE_AFTER", 0.05)


@pytest.mark.parametrize("fault", ["hangs", "refuses"])
async def test_an_engine_that_does_not_answer_is_reported_until_it_does(fault: str) -> None:
    engine, conditions = Engine(), Conditions()
    async with watched(engine, conditions):
        if fault == "hangs":
            engine.answers.clear()
        else:
            engine.error = BackendError("no")
        await eventually(lambda: [each.type for each in conditions.all()] == [ConditionType.ENGINE_UNRESPONSIVE])
        engine.error = None
        engine.answers.set()
        await eventually(lambda: conditions.all() == ())


async def test_refusals_count_from_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(engine_watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(engine_watch, "UNRESPONSIVE_AFTER", 100.0)
    engine, conditions = Engine(), Conditions()

    async def ask_again() -> None:
        asked = engine.asked
        await eventually(lambda: engine.asked > asked + 2)

    async with watched(engine, conditions):
        await ask_again()
        now[0] = 1000.0
        await ask_again()
        engine.error = BackendError("no")
        await ask_again()
        now[0] = 1099.0
        await ask_again()
        assert conditions.all() == ()
        now[0] = 1100.0
        await eventually(lambda: conditions.all() != ())
        engine.error = None


async def test_a_call_that_takes_long_is_not_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "UNRESPONSIVE_AFTER", 3600.0)
    engine, conditions = Engine(), Conditions()
    engine.answers.clear()
    async with watched(engine, conditions):
        await eventually(lambda: engine.asked == 1)
        # A report would be there after a few turns of the loop.
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert conditions.all() == ()
        engine.answers.set()
