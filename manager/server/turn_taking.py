"""Has calls wait for their turn, as `retinue.manager.server.turns` decides."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.server.call_limits import (
    COSTS,
    MAX_WAITING,
    REFUSAL_COST,
    STREAM_COST,
    Caller,
    CallerClass,
    Weight,
)
from retinue.manager.server.turns import DEFAULT_PACING, Paces, Pacing, Turns
from retinue.manager.store.postgres.database import StoreBusy
from retinue.manager.store.postgres.lanes import POOL_SIZES, Lane

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

# As many as find a connection; administrators have few, and more to do beside the database.
PLACES: Mapping[CallerClass, int] = {
    CallerClass.USER: POOL_SIZES[Lane.USERS],
    CallerClass.ADMIN: 2 * POOL_SIZES[Lane.ADMINISTRATORS],
}

# How long a call waits for a place: those who have them may all wait for a lock.
PLACE_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Ticket:
    """One call that waits; `begun` once it need not."""

    ready: asyncio.Future[None]
    begun: bool = False

    def begin(self) -> None:
        self.begun = True
        if not self.ready.done():
            self.ready.set_result(None)


class TurnTaking:
    """The turns of one server; belongs on one event loop."""

    def __init__(self, pacing: Pacing = DEFAULT_PACING, places: Mapping[CallerClass, int] = PLACES) -> None:
        self._paces = Paces[_Ticket](pacing)
        self._turns = {kind: Turns[_Ticket](number) for kind, number in places.items()}
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def paced(self, caller: Caller, weight: Weight, *, stream: bool) -> AsyncIterator[None]:
        """Waits until the caller may make a call, and counts it for as long as the block lasts: what it costs, and what
        the block charges. A stream, and a call that waits for an agent, is not among those that run.
        """
        counts = not stream and weight is not Weight.RELAYED
        await self._pace(caller, STREAM_COST if stream else COSTS[weight], counts=counts)
        with self._charging(caller):
            try:
                yield
            finally:
                if counts:
                    self._paces.end(caller)
                    self._begin_due()

    async def before_refusal(self, caller: Caller) -> None:
        """Waits as long as a call that is refused has to: who asks again at once is no faster for it."""
        if self._paces.waiting(caller) < MAX_WAITING:
            await self._pace(caller, REFUSAL_COST, counts=False)

    @contextlib.asynccontextmanager
    async def place(self, caller: Caller, weight: Weight) -> AsyncIterator[None]:
        """Waits for one of the places of the caller's class, and has it for as long as the block lasts.
        Raises StoreBusy after `PLACE_SECONDS`.
        """
        turns = self._turns.get(caller.kind)
        if turns is None or weight is Weight.RELAYED:
            yield
            return
        ticket = _Ticket(asyncio.get_running_loop().create_future())
        if turns.arrive(caller, ticket, COSTS[weight]):
            ticket.begin()
        try:
            if not ticket.begun:
                await _within(PLACE_SECONDS, ticket)
            yield
        finally:
            if not ticket.begun:
                turns.leave(caller, ticket)
            elif (following := turns.end()) is not None:
                following.begin()

    async def _pace(self, caller: Caller, cost: float, *, counts: bool) -> None:
        ticket = _Ticket(asyncio.get_running_loop().create_future())
        if self._paces.arrive(caller, ticket, cost, time.monotonic(), counts=counts):
            return
        self._set_timer()
        try:
            await ticket.ready
        except BaseException:
            if not ticket.begun:
                self._paces.leave(caller, ticket)
            elif counts:
                self._paces.end(caller)
                self._begin_due()
            raise

    @contextlib.contextmanager
    def _charging(self, caller: Caller) -> Iterator[None]:
        token = _charged.set((self, caller))
        try:
            yield
        finally:
            _charged.reset(token)

    def charge(self, caller: Caller, cost: float) -> None:
        """Counts seconds of the loop that a call of a caller takes beyond those of its weight."""
        self._paces.charge(caller, cost, time.monotonic())

    def _begin_due(self) -> None:
        for ticket in self._paces.due(time.monotonic()):
            ticket.begin()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = self._paces.next_due(time.monotonic())
        if seconds is not None:
            # Not sooner than the clock moves on.
            self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.001), self._begin_due)


async def _within(seconds: float, ticket: _Ticket) -> None:
    try:
        async with asyncio.timeout(seconds):
            await ticket.ready
    except TimeoutError:
        raise StoreBusy(f"no place among those that the database works for became free within {seconds} s") from None


_charged: ContextVar[tuple[TurnTaking, Caller] | None] = ContextVar("charged", default=None)


def charge(cost: float) -> None:
    """Counts seconds of the loop that this task's call takes beyond those of its weight; nothing outside a call."""
    if (charged := _charged.get()) is not None:
        turns, caller = charged
        turns.charge(caller, cost)
