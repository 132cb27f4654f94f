"""Long work on the event loop, in slices short enough for what waits beside it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLICE_SECONDS = 0.004
"""After which others have a turn."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


async def in_slices(
    items: Iterable[_Item], convert: Callable[[_Item], _Result], *, clock: Callable[[], float] = time.perf_counter
) -> list[_Result]:
    """Returns what `convert` makes of each item, in order. Whatever else is ready runs after every 4 ms of it."""
    results: list[_Result] = []
    began = clock()
    for item in items:
        results.append(convert(item))
        if clock() - began >= SLICE_SECONDS:
            await asyncio.sleep(0)
            began = clock()
    return results
