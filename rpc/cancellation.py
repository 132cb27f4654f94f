"""Cancellation that arrives whatever the cancelled work ends with, and work that is not cancelled halfway."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")

# Between two cancellations of the same work: of one exchange, and of work that may have cleaning up to do.
_CANCEL_SECONDS = 1.0
_CLEANING_SECONDS = 5.0


class UnrequestedCancellationError(Exception):
    """Work ended as if it was cancelled, and its caller was not: a call within it was, by a library or by mistake."""

    def __init__(self) -> None:
        super().__init__("it was cancelled, and nothing asked for that")


async def cancellable(work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
    """Calls and awaits `work`, and raises CancelledError when the caller was cancelled meanwhile, after it has ended.
    A caller that is cancelled before it began does not call it.

    Raises UnrequestedCancellationError when the work alone was cancelled: a group of tasks forgets a task that ends
    with a cancellation, as if it were done.

    Awaited plainly, a group of tasks in which something fails while it is cancelled raises the failure only (before
    Python 3.13), and a caller that handles that failure is never cancelled.
    """
    task = asyncio.ensure_future(work(*args, **options))
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        await _wait_out(task, 0.0, _CLEANING_SECONDS)
        raise
    if task.cancelled():
        raise UnrequestedCancellationError
    return task.result()


async def shielded(work: Coroutine[Any, Any, T], grace_seconds: float, limit_seconds: float | None = None) -> T:
    """Awaits `work` in a task of its own, which the caller's cancellation does not reach for `grace_seconds`.

    Raises CancelledError when the caller was cancelled meanwhile, and TimeoutError after `limit_seconds`; both only
    after `work` has ended, so that whatever it uses is free.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=limit_seconds)
    except asyncio.CancelledError:
        await _wait_out(task, grace_seconds)
        raise
    if not task.done():
        task.cancel()
        await _wait_out(task, _CANCEL_SECONDS)
        raise TimeoutError(f"not done after {limit_seconds} s")
    return await task


async def _wait_out(task: asyncio.Future[Any], grace_seconds: float, interval: float = _CANCEL_SECONDS) -> None:
    """Waits until `task` has ended, and ignores what it raises and further cancellation of the caller.

    Cancels the task after `grace_seconds`, and again after each `interval` seconds: work that loses a cancellation, or
    waits after it for a server that says nothing, would otherwise be waited for without end.
    """
    clock = asyncio.get_running_loop().time
    next_cancel = clock() + grace_seconds
    while not task.done():
        if clock() >= next_cancel:
            task.cancel()
            next_cancel = clock() + interval
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,), timeout=next_cancel - clock())
    if not task.cancelled():
        # Retrieved, so that asyncio does not report it as an error that was ignored.
        task.exception()
