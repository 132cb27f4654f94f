"""When an engine counts as unresponsive."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from agent.backends import docker_watch
from agent.backends.backend import BackendError
from agent.backends.docker_watch import watch_engine
from agent.conditions import Conditions, ConditionType

if TYPE_CHECKING:
    from collections.abc import Callable


class Engine:
    """Answers, refuses, or hangs."""

    def __init__(self) -> None:
        self.error: BackendError | None = None
        self.answers = threading.Event()
        self.answers.set()

    def check(self) -> None:
        self.answers.wait()
        if self.error is not None:
            raise self.error


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("fault", ["hangs", "refuses"])
async def test_an_engine_that_does_not_answer_is_reported_until_it_does(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(docker_watch, "INTERVAL", 0.01)
    monkeypatch.setattr(docker_watch, "UNRESPONSIVE_AFTER", 0.05)
    engine, conditions = Engine(), Conditions()
    watching = asyncio.create_task(watch_engine(engine, conditions))
    if fault == "hangs":
        engine.answers.clear()
    else:
        engine.error = BackendError("no")
    await eventually(lambda: [each.type for each in conditions.all()] == [ConditionType.ENGINE_UNRESPONSIVE])
    engine.error = None
    engine.answers.set()
    await eventually(lambda: conditions.all() == ())
    engine.answers.clear()
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    engine.answers.set()
