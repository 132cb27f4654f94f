"""Threads by what they wait for: a disk that hangs takes those of its own lane, and holds up no signal,
network or term.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Lane:
    """Threads of one kind; they are started as they are needed."""

    def __init__(self, name: str, threads: int) -> None:
        """So many at the most."""
        self._pool = ThreadPoolExecutor(threads, name)

    async def run(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Runs a function that blocks, as `asyncio.to_thread` does."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **kwargs))


RECORDS = Lane("records", 8)
"""Files of attempts in the state directory."""
STATE = Lane("state", 2)
"""The few small files of the agent itself: the term, and what the watchdog goes by."""
KERNELS = Lane("kernels", 16)
"""Signals, control groups, and waiting for the end of processes."""
NETWORK = Lane("network", 8)
"""Netlink and the packet filter."""
