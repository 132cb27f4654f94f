"""Waiting for what comes to hold at some time: no test depends on when, unless it never does."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

Value = TypeVar("Value")

NEVER = 300.0
"""The bound of every wait in tests, in seconds: what has not happened by then never does. It only has to be far above
what a busy machine takes, as a wait ends with its event.
"""
FIRST_PAUSE, LAST_PAUSE = 0.005, 0.1
"""Seconds between two looks: they grow with the wait, so that a long one leaves the
processors to what is waited for.
"""


@overload
async def eventually(
    look: Callable[[], Awaitable[Value]],
    wanted: Callable[[Value], object] = bool,
    *,
    seconds: float = NEVER,
    ignoring: type[Exception] | tuple[type[Exception], ...] = (),
) -> Value: ...


@overload
async def eventually(
    look: Callable[[], Value],
    wanted: Callable[[Value], object] = bool,
    *,
    seconds: float = NEVER,
    ignoring: type[Exception] | tuple[type[Exception], ...] = (),
) -> Value: ...


async def eventually(
    look: Callable[[], Any],
    wanted: Callable[[Any], object] = bool,
    *,
    seconds: float = NEVER,
    ignoring: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """Returns the first value that is wanted: by default, the first that counts as true.

    Errors of the kinds `ignoring` mean that there is none yet. Raises AssertionError with the
    last value or error when none comes.
    """
    last: object = "no value"
    pauses = _pauses()
    try:
        async with asyncio.timeout(seconds) as bound:
            while True:
                try:
                    value = look()
                    if inspect.isawaitable(value):
                        value = await value
                except ignoring as error:
                    last = error
                else:
                    if wanted(value):
                        return value
                    last = value
                await asyncio.sleep(next(pauses))
    except TimeoutError:
        if not bound.expired():
            raise
    raise AssertionError(f"still {last!r} after {seconds:.0f} s")


def eventually_blocking(
    look: Callable[[], Value],
    wanted: Callable[[Value], object] = bool,
    *,
    seconds: float = NEVER,
    ignoring: type[Exception] | tuple[type[Exception], ...] = (),
) -> Value:
    """The same for threads without an event loop, and fixtures that are not coroutines."""
    deadline = time.monotonic() + seconds
    pauses = _pauses()
    while True:
        last: object
        try:
            value = look()
        except ignoring as error:
            last = error
        else:
            if wanted(value):
                return value
            last = value
        assert time.monotonic() < deadline, f"still {last!r} after {seconds:.0f} s"
        time.sleep(next(pauses))


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 1.2, LAST_PAUSE)
