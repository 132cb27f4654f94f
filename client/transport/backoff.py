"""Tries broken calls again: exponential waits with full jitter, within a retry budget."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.client.errors import CallError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tenacity import AttemptManager, RetryCallState

TOO_MANY_CALLS = "TOO_MANY_CALLS"
_READER_TOO_SLOW = "READER_TOO_SLOW"


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """Bounds retries, in seconds: the first wait is up to `first`, waits double up to `longest`; after `total` without
    progress the call fails. `waiting`, if any, is called before each wait with the failure and the seconds that are
    left.
    """

    first: float = 0.2
    longest: float = 5.0
    total: float = 120.0
    waiting: Callable[[CallError, float], None] | None = None


class Backoff:
    """Waits between tries of one piece of work. What counts begins with the first failure since progress,
    however long the work went well.
    """

    def __init__(self, retry_budget: RetryBudget, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """`sleep` takes seconds."""
        self._retry_budget = retry_budget
        self._sleep = sleep
        self._tries: AsyncIterator[AttemptManager] | None = None

    def progressed(self) -> None:
        """Records progress: the next failure counts as the first again."""
        self._tries = None

    async def failed(self, failure: CallError) -> None:
        """Waits until the next try. Raises the failure: at once when trying again is of no use,
        else when the budget is used up.
        """
        if self._tries is None:
            self._tries = _tries(self._retry_budget, self._sleep)
            self._attempt = await anext(self._tries)
        with self._attempt:
            raise failure
        self._attempt = await anext(self._tries)


def _tries(retry_budget: RetryBudget, sleep: Callable[[float], Awaitable[None]]) -> AsyncIterator[AttemptManager]:
    # Calls that succeed need none of it, and it takes long to import.
    from tenacity import (  # noqa: PLC0415
        AsyncRetrying,
        retry_if_exception,
        stop_after_delay,
        wait_random_exponential,
    )

    drawn = wait_random_exponential(multiplier=retry_budget.first, max=retry_budget.longest)

    def wait(retry_state: RetryCallState) -> float:
        """Waits for as long as the server asks, if that is longer."""
        failure = retry_state.outcome.exception() if retry_state.outcome is not None else None
        asked = failure.retry_after if isinstance(failure, CallError) else None
        return max(drawn(retry_state), asked or 0.0)

    def say(retry_state: RetryCallState) -> None:
        failure = retry_state.outcome.exception() if retry_state.outcome is not None else None
        if retry_budget.waiting is not None and isinstance(failure, CallError):
            retry_budget.waiting(failure, max(0.0, retry_budget.total - (retry_state.seconds_since_start or 0.0)))

    return aiter(
        AsyncRetrying(
            before_sleep=say,
            sleep=sleep,
            retry=retry_if_exception(_is_passing),
            wait=wait,
            stop=stop_after_delay(retry_budget.total),
            reraise=True,
        )
    )


def _is_passing(failure: BaseException) -> bool:
    reason = failure.reason if isinstance(failure, CallError) else ""
    return isinstance(failure, Unavailable) or reason in {_READER_TOO_SLOW, TOO_MANY_CALLS}
