"""A run and its events, kept within bounds for readers, now or later."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from typing import TYPE_CHECKING

from retinue.agent.code.core.events import (
    Event,
    Finished,
    InputRequest,
    Notice,
    NumberedEvent,
    RunRequest,
    Status,
    size,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

MAX_BYTES = 4 << 20
"""Of the events of one run; the oldest go first, but not the newest one."""
_OVERHEAD = 100
LINGER = 0.005
"""Seconds that an event may wait for the next one, unless it is awaited: the end, or a question."""
LARGEST_PIECE = 512 * 1024
"""Bytes of events that are read at a time, and one event more."""


class OffsetPastEndError(Exception):
    """The run has not got that far; `size` is how far it has."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the run has {size} events")
        self.size = size


class Run:
    """One run: append on one side, read on the other."""

    def __init__(self, request: RunRequest) -> None:
        """Nothing has happened yet."""
        self.request = request
        self.id = request.run_id
        self.interrupted: Status | None = None
        self.interrupt_wanted = asyncio.Event()
        self.by_force = False
        self.started = False
        self.over = False
        self.waits_for_input = False
        self._failure: Exception | None = None
        self._events: deque[NumberedEvent] = deque()
        self._size = 0
        self._begin = 0
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()

    @property
    def end(self) -> int:
        """Returns the offset of the next event."""
        return self._begin + len(self._events)

    def interrupt(self, status: Status, *, force: bool = False) -> None:
        """Asks for the end of it; the first reason counts."""
        self.by_force = self.by_force or force
        if self.interrupted is None:
            self.interrupted = status
        self.interrupt_wanted.set()

    def append(self, event: Event) -> None:
        """Adds what happened; nothing happens after the end."""
        if self.over:
            return
        self._events.append(NumberedEvent(self.end, event))
        self._size += size(event) + _OVERHEAD
        while self._size > MAX_BYTES and len(self._events) > 1:
            self._size -= size(self._events.popleft().event) + _OVERHEAD
            self._begin += 1
        self.over = isinstance(event, Finished)
        if self.over or isinstance(event, InputRequest):
            self._urgent.set()
        else:
            self._urgent.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def extend(self, events: Iterable[Event]) -> None:
        """Adds all of these."""
        for event in events:
            self.append(event)

    def fail(self, failure: Exception) -> None:
        """Ends it without a last event: readers get what has happened, and then `failure`."""
        if not self.over:
            self.over, self._failure = True, failure
            self._urgent.set()
            self._changed.set()

    async def read(self, offset: int) -> AsyncGenerator[list[NumberedEvent], None]:
        """Yields events from an offset to the end of the run, several at a time when they come fast.
        Raises OffsetPastEndError, and what the run failed with.

        Those that are not kept any more are passed over, which the offsets show,
        and a remark without a place of its own.
        """
        if offset > self.end:
            raise OffsetPastEndError(self.end)
        while True:
            changed = self._changed
            if offset < self._begin:
                remark = Notice(f"{self._begin - offset} events are not kept any more")
                yield [NumberedEvent(self._begin - 1, remark)]
                offset = max(offset, self._begin)
            elif offset < self.end:
                if not self._urgent.is_set():
                    # A message for each event costs more than most events do.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LINGER):
                            await self._urgent.wait()
                if offset >= self._begin:
                    events = self._piece(offset)
                    offset += len(events)
                    yield events
            elif self.over:
                if self._failure is not None:
                    raise self._failure
                return
            else:
                await changed.wait()

    def _piece(self, offset: int) -> list[NumberedEvent]:
        events, taken = [], 0
        for event in itertools.islice(self._events, offset - self._begin, None):
            events.append(event)
            taken += size(event.event)
            if taken > LARGEST_PIECE:
                break
        return events
