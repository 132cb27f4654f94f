"""What an interrupt does while nothing is to be cleaned up: it ends the program, without a traceback.

A program spends its first tenths of a second on imports, where Python's `KeyboardInterrupt` comes out of any line, and
as a traceback out of those that nothing can catch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import FrameType

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


@contextlib.asynccontextmanager
async def said_when_cancelled(text: str) -> AsyncIterator[None]:
    """Says on standard error what goes on when an interrupt ends only the wait for it."""
    import asyncio  # noqa: PLC0415  # this module is loaded before all others, for what is quick

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
