"""Cancels work at a chosen moment: at the n-th time that it waits for anything."""

from __future__ import annotations

import asyncio
import contextlib
import types
from typing import TYPE_CHECKING, Any

from retinue.manager.store.postgres.database import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator


class Countdown:
    """Counts the times that work waits, and cancels whichever task waits for the last of them."""

    def __init__(self, waits: int) -> None:
        self._left = waits

    @property
    def reached(self) -> bool:
        """Whether the work lasted until its cancellation."""
        return self._left <= 0

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            task = asyncio.current_task()
            assert task is not None
            # Takes effect at the wait that is about to begin.
            task.cancel()

    @types.coroutine
    def counted(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Runs `work` as it is, and counts."""
        resume: Callable[[], Any] = lambda: work.send(None)  # noqa: E731  # replaced below
        while True:
            try:
                waits_for = resume()
            except StopIteration as end:
                return end.value
            self.step()
            try:
                answer = yield waits_for
            except BaseException as error:  # noqa: BLE001  # all of them belong to the work
                resume = _throwing(work, error)
            else:
                resume = _sending(work, answer)


def _throwing(work: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: work.throw(error)


def _sending(work: Coroutine[Any, Any, Any], answer: Any) -> Callable[[], Any]:
    return lambda: work.send(answer)


async def cancelled_at(wait: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Runs `work` and cancels it, as its caller would, at its n-th wait. Returns whether it waited so often."""
    countdown = Countdown(wait)
    await _ended(asyncio.create_task(countdown.counted(work)))
    return countdown.reached


async def broken_off_at(wait: int, work: Coroutine[Any, Any, Any]) -> bool:
    """As `cancelled_at`, but counts the waits of the tasks that `work` starts too and cancels one of those,
    as the end of a loop does.
    """
    countdown = Countdown(wait)
    loop = asyncio.get_running_loop()

    def make(running: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(countdown.counted(coroutine), loop=running, **options)

    former = loop.get_task_factory()
    loop.set_task_factory(make)
    try:
        await _ended(asyncio.create_task(work))
    finally:
        loop.set_task_factory(former)
    return countdown.reached


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled():
        # Which of the two it is depends on how far the exchange with the server was.
        with contextlib.suppress(StoreUnavailable):
            task.result()
