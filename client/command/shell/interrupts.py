"""What an interrupt does while nothing is to be cleaned up: it ends the program, without a traceback.

A program spends its first tenths of a second on imports, where Python's `KeyboardInterrupt` comes out of any line, and
as a traceback out of those that nothing can catch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator
    from types import FrameType

_Value = TypeVar("_Value")

INTERRUPTED = 130
"""The exit code after SIGINT, as shells have it."""


def end_at_interrupts() -> None:
    """Ends the process with 130 at SIGINT from here on, unless it is ignored, as in the background of a script."""
    if _is_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextlib.contextmanager
def raised_interrupts() -> Iterator[None]:
    """Has SIGINT raise `KeyboardInterrupt` in the block, if it would end the process: what runs there cleans up."""
    if not _is_main_thread() or signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end)


def run_interruptible(work: Coroutine[Any, Any, _Value]) -> _Value:
    """Runs `work` in an event loop of its own, where SIGINT cancels it, and raises `KeyboardInterrupt` then."""
    import asyncio  # noqa: PLC0415  # this module is loaded before all others, for what is quick

    with asyncio.Runner() as runner:
        # An interrupt ends the process until the loop is whole, then waits until it is handled: half of a loop and
        # work that never began are reported at the end of the process.
        runner.get_loop()
        with _held(), raised_interrupts():
            return runner.run(_released(work))


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Keeps SIGINT back until `_released`, if it is the program's own to handle."""
    if not hasattr(signal, "pthread_sigmask") or not _is_main_thread() or signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _released(work: Coroutine[Any, Any, _Value]) -> _Value:
    if hasattr(signal, "pthread_sigmask") and _is_main_thread():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return await work


@contextlib.asynccontextmanager
async def said_when_cancelled(text: str) -> AsyncIterator[None]:
    """Says on standard error what goes on when an interrupt ends only the wait for it."""
    import asyncio  # noqa: PLC0415  # as above

    import click  # noqa: PLC0415  # as above

    try:
        yield
    except asyncio.CancelledError:
        click.echo(f"retinue: {text}", err=True)
        raise


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
