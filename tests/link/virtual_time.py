"""A loop whose time passes at once: what waits for a second takes none, and every run takes the same course."""

from __future__ import annotations

import asyncio
import random
import selectors
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


MAX_STEPS = 100_000
"""Steps of the loop at one time: more are a task that never waits."""


class StuckError(Exception):
    """Every task waits for another one, or one never waits: no time will change that."""


class _Selector(selectors.DefaultSelector):
    """Skips the time until the next timer instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._steps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        self._steps += 1
        if self._steps > MAX_STEPS or (timeout is None and not ready):
            # What is cancelled now gets its steps.
            self._steps = 0
            raise StuckError
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
            self._steps = 0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 seconds. Functions for threads are run at once, in the loop's own."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        del executor
        done: asyncio.Future[Result] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # raised where it is awaited
            done.set_exception(error)
        return done


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine in virtual time, with the same random numbers each time."""
    random.seed(0)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
