"""The attempts of one backend: what is known of each, in memory and on disk, and who is told of changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from agent.backends.backend import BackendError, UnknownAttemptError
from agent.backends.kernels import OUTPUT
from agent.backends.observation import Observation
from agent.backends.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent.attempts import Layer, ObservedAttempt
    from agent.backends.processes import Process
    from agent.backends.records import Record, Records

BOUND_INTERVAL = 1.0
"""Seconds between two looks at the sizes of outputs."""


class Book:
    """Records by id of attempt; every change is on disk before it is seen. Methods belong on one event loop."""

    def __init__(self, store: Records) -> None:
        """Nothing is read before `open`."""
        self._store = store
        self._records: dict[str, Record] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        # Being removed.
        self._leaving: set[str] = set()
        self._observation = Observation()
        self._listener: Callable[[], None] = lambda: None
        self.kill_at: dict[str, float] = {}
        """When an attempt that was asked to end is due to be killed, on the monotonic clock."""
        self.layers: dict[str, tuple[Layer, ...]] = {}
        """How far the image of an attempt in PULLING is fetched."""

    def __contains__(self, attempt_id: str) -> bool:
        """Whether there is a record of the attempt."""
        return attempt_id in self._records

    def __iter__(self) -> Iterator[Record]:
        """All records there are now."""
        return iter(list(self._records.values()))

    async def open(self, listener: Callable[[], None]) -> set[str]:
        """Reads all records; the result are attempts whose record cannot be read. `listener` is told of each change."""
        self._listener = listener
        self._records, unreadable = await asyncio.to_thread(self._store.load)
        return unreadable

    def record(self, attempt_id: str) -> Record:
        """What is known of an attempt. Raises UnknownAttemptError."""
        if (record := self._records.get(attempt_id)) is None:
            raise UnknownAttemptError(f"there is no attempt {attempt_id}")
        return record

    def namespace_path(self, attempt_id: str) -> str:
        """Path of the network namespace of an attempt that was created. Raises BackendError on others."""
        init = self.record(attempt_id).init
        if init is None:
            raise BackendError(f"attempt {attempt_id} does not run")
        return f"/proc/{init.pid}/ns/net"

    def first_process(self, attempt_id: str) -> Process | None:
        """The process of the node that an attempt lives and ends with; None when there is none any more."""
        record = self._records.get(attempt_id)
        return None if record is None or record.phase.ended else record.init

    def place(self, attempt_id: str) -> Path:
        """The attempt's directory."""
        return self._store.place(attempt_id)

    def was_removed(self, attempt_id: str) -> bool:
        """Whether there once was a record, and it was removed."""
        return self._store.was_removed(attempt_id)

    def lock(self, attempt_id: str) -> asyncio.Lock:
        """To be held by whoever changes the attempt."""
        return self._locks.setdefault(attempt_id, asyncio.Lock())

    async def add(self, record: Record, *, lasting: bool = True) -> bool:
        """Makes a first record; False when there is one already. Raises OSError.

        With `lasting` it outlives a crash of the node when this returns, else from `make_lasting` on.
        """
        if record.id in self._records or not await asyncio.to_thread(self._store.add, record):
            return False
        if lasting:
            await self.make_lasting(record.id)
        self.show(record)
        return True

    async def make_lasting(self, attempt_id: str) -> None:
        """Has a record outlive a crash of the node. Raises OSError."""
        await asyncio.to_thread(self._store.make_lasting, attempt_id)

    async def write(self, record: Record) -> None:
        """Replaces a record. Raises OSError, and then the former one stands."""
        await asyncio.to_thread(self._store.write, record)
        self.show(record)

    def show(self, record: Record) -> None:
        """Takes up a record that is on disk, or whose loss does no harm."""
        self._records[record.id] = record
        self.changed()

    def forget(self, attempt_id: str) -> None:
        """Drops an attempt that was shown, and is not on disk."""
        del self._records[attempt_id]
        self.changed()

    def changed(self) -> None:
        """Tells the listener that something is not as it was."""
        self._listener()

    async def set_aside(self, attempt_id: str) -> None:
        """Moves the directory of an attempt that has no readable record away, for a person to look at."""
        await asyncio.to_thread(self._store.set_aside, attempt_id)

    async def remove(self, attempt_id: str) -> None:
        """Removes a record and the attempt's directory, and remembers that it was there. Raises OSError."""
        # Before the files go: whoever reads the output meanwhile must not take it for empty.
        self._leaving.add(attempt_id)
        try:
            await asyncio.to_thread(self._store.remove, attempt_id)
        finally:
            self._leaving.discard(attempt_id)
        del self._records[attempt_id]
        self._locks.pop(attempt_id, None)
        self.changed()

    def output(self, attempt_id: str) -> Output:
        """What the attempt printed. Raises UnknownAttemptError."""
        self.record(attempt_id)
        if attempt_id in self._leaving:
            raise UnknownAttemptError(f"attempt {attempt_id} is being removed")

        def over() -> bool:
            record = self._records.get(attempt_id)
            return record is None or record.phase.ended

        return Output(self.place(attempt_id) / OUTPUT, over)

    async def bound_outputs(self, limit: int) -> None:
        """Keeps what running attempts print within so many bytes each; does not return."""
        while True:
            await asyncio.sleep(BOUND_INTERVAL)
            for record in self:
                if not record.phase.ended:
                    with contextlib.suppress(UnknownAttemptError, OSError):
                        await asyncio.to_thread(self.output(record.id).look, limit, time.time())

    def observed(self) -> dict[str, ObservedAttempt]:
        """All attempts by id, as the outside sees them."""
        return self._observation.of(self._records, self.kill_at, self.layers)
