"""Cancellation that arrives whatever the cancelled work ends with, and work that is not cancelled halfway."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def cancellable(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`, and raises CancelledError when the caller was cancelled meanwhile, after `work` has ended.

    Awaited plainly, a group of tasks in which something fails while it is cancelled tells of the failure only (before Python 3.13), and
    whoever waits that failure out is never cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return task.result()


async def shielded(work: Coroutine[Any, Any, T], grace_seconds: float, limit_seconds: float | None = None) -> T:
    """Awaits `work` in a task of its own, which the caller's cancellation does not reach for `grace_seconds`.

    Raises CancelledError when the caller was cancelled meanwhile, and TimeoutError after `limit_seconds`; both only after `work` has ended, so that
    whatever it uses is free.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=limit_seconds)
    except asyncio.CancelledError:
        await _wait_out(task, grace_seconds)
        raise
    if not task.done():
        task.cancel()
        await _wait_out(task, math.inf)
        raise TimeoutError(f"not done after {limit_seconds} s")
    return await task


async def _wait_out(task: asyncio.Future[Any], grace_seconds: float) -> None:
    """Waits until `task` has ended, cancels it after `grace_seconds`, and ignores what it raises and further cancellation of the caller."""
    clock = asyncio.get_running_loop().time
    patience = clock() + grace_seconds
    while not task.done():
        left = patience - clock()
        if left <= 0:
            task.cancel()
            left = patience = math.inf
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,), timeout=None if math.isinf(left) else left)
    if not task.cancelled():
        # Retrieved, so that asyncio does not report it as an error that was ignored.
        task.exception()
