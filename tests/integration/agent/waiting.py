"""Waiting for something that sends no event, with a bound."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE = 20.0


async def eventually(condition: Callable[[], bool]) -> None:
    """Returns as soon as the condition holds; raises TimeoutError when it does not for too long."""
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.01)
