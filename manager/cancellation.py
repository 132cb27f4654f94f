"""Cancellation that arrives whatever the cancelled work ends with."""

from __future__ import annotations

import asyncio
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
