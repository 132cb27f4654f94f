"""Takes the one request of a call, once it is known who makes the call, and bounds what requests that have not arrived
whole hold of memory.

The library gives a request as much memory as its first bytes announce, 4 MiB at most, for as long as the rest takes. So
only a few of each caller arrive at a time, and each has to be there soon; the others wait in their connections, whose
windows are small.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from retinue.manager.domain import errors
from retinue.manager.server.call_limits import Caller, CallerClass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Those of one caller that arrive at a time.
OF_CALLER = 8
# Those of one address without a known caller, and those of all such addresses: 32 MiB at most.
OF_ADDRESS, OF_STRANGERS = 2, 8
# How long a request may take from the start of its call; those of strangers are a few KB.
SECONDS, STRANGER_SECONDS = 15.0, 5.0


class Arrivals:
    """Requests on their way; belongs on one event loop."""

    def __init__(self, seconds: float = SECONDS, stranger_seconds: float = STRANGER_SECONDS) -> None:
        self._seconds = seconds
        self._stranger_seconds = stranger_seconds
        # Of callers of whom a request arrives now.
        self._turns: dict[Caller, tuple[asyncio.Semaphore, int]] = {}
        self._strangers = asyncio.Semaphore(OF_STRANGERS)

    async def one(self, requests: AsyncIterator[Any], caller: Caller) -> Any:
        """Returns the one request of a call, as bytes. Raises DeadlineExceeded when it does not arrive in time, and
        InvalidRequest when the caller sends none.
        """
        stranger = caller.kind is CallerClass.ADDRESS
        seconds = self._stranger_seconds if stranger else self._seconds
        try:
            async with asyncio.timeout(seconds) as scope:
                turn = self._turn(caller, OF_ADDRESS if stranger else OF_CALLER)
                async with turn, self._strangers if stranger else contextlib.nullcontext():
                    return await anext(requests)
        except StopAsyncIteration:
            raise errors.InvalidRequest([("request", "is missing: send one message")]) from None
        except TimeoutError:
            if not scope.expired():
                raise
            raise errors.DeadlineExceeded(f"the request did not arrive whole within {seconds:g} s") from None

    @contextlib.asynccontextmanager
    async def _turn(self, caller: Caller, at_a_time: int) -> AsyncIterator[None]:
        semaphore, holders = self._turns.get(caller, (None, 0))
        semaphore = semaphore or asyncio.Semaphore(at_a_time)
        self._turns[caller] = semaphore, holders + 1
        try:
            async with semaphore:
                yield
        finally:
            semaphore, holders = self._turns.pop(caller)
            if holders > 1:
                self._turns[caller] = semaphore, holders - 1

    def __len__(self) -> int:
        """Returns how many callers have a request on its way."""
        return len(self._turns)
