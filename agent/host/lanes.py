"""Threads by what they wait for: a disk that hangs takes those of its own lane, and holds up no signal,
network or term.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from retinue.agent.errors import NetworkError
from retinue.rpc import failpoints

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from retinue.rpc.failpoints import Raised

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Lane:
    """Threads of one kind; they are started as they are needed."""

    def __init__(self, name: str, threads: int, error: Raised = failpoints.disk_error) -> None:
        """So many at the most; `error` is what a step in them fails with at a failpoint."""
        self._name = name
        self._pool = ThreadPoolExecutor(threads, name)
        self._error = error

    def run(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Coroutine[Any, Any, Result]:
        """Runs a function that blocks, as `asyncio.to_thread` does."""

        def step() -> Awaitable[Result]:
            return asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **kwargs))

        return _passing(self._name, step, self._error)


def in_thread(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Coroutine[Any, Any, Result]:
    """Runs a function that blocks in a thread of no lane, as `asyncio.to_thread` does."""
    return _passing("thread", partial(asyncio.to_thread, function, *args, **kwargs), failpoints.disk_error)


def _passing(lane: str, step: Callable[[], Awaitable[Result]], error: Raised) -> Coroutine[Any, Any, Result]:
    """Passes the point of the function that calls the caller, which need not be what awaits it."""
    if failpoints.active is None:
        return _done(step)
    site = failpoints.site(sys._getframe(2))  # noqa: SLF001  # the caller's caller
    return failpoints.active.awaited(f"{lane}@{site}", step, error)


async def _done(step: Callable[[], Awaitable[Result]]) -> Result:
    return await step()


RECORDS = Lane("records", 8)
"""Files of attempts in the state directory."""
STATE = Lane("state", 2)
"""The few small files of the agent itself: the term, and what the watchdog goes by."""
KERNELS = Lane("kernels", 16)
"""Signals, control groups, and waiting for the end of processes."""
NETWORK = Lane("network", 8, NetworkError)
"""Netlink and the packet filter."""
