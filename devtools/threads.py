"""Blocking work off the event loop that is never left to itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Parameters = ParamSpec("_Parameters")
_Value = TypeVar("_Value")


async def in_thread(
    function: Callable[_Parameters, _Value], *arguments: _Parameters.args, **named: _Parameters.kwargs
) -> _Value:
    """Runs like `asyncio.to_thread`, but when cancelled waits for the thread to finish first.

    A later cleanup then finds all that the function has made, and nothing is made behind its back.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            # The cancellation continues; an error of the thread is of no use any more.
            work.exception()
        raise
