"""The attempts of one runtime: the record of each, in memory and on disk,
and the listener that is notified of changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import Pause, Phase
from retinue.agent.errors import UnknownAttemptError
from retinue.agent.host.lanes import RECORDS, in_thread
from retinue.agent.inside.log_file import Output
from retinue.agent.inside.output_pump import OUTPUT, revive
from retinue.agent.runtime.observation import Observation
from retinue.agent.runtime.unkillable import MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from retinue.agent.attempts import Layer, ObservedAttempt
    from retinue.agent.host.processes import Process
    from retinue.agent.runtime.attempt_records import Record, Records

NOTE_TIMEOUT = 5.0
"""Seconds that the disk may take before what has to be done is done."""
LATE_INTERVAL = 1.0
"""Seconds before the disk is tried again."""

_log = logging.getLogger(__name__)

BOUND_INTERVAL = 1.0
"""Seconds between two looks at the sizes of outputs."""


class AttemptStore:
    """Records by id of attempt; every change is on disk before it is seen. Methods belong on one event loop."""

    def __init__(self, store: Records) -> None:
        """Reads nothing before `open`."""
        self._store = store
        self._records: dict[str, Record] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._saving: dict[str, asyncio.Lock] = {}
        # Attempts whose record on disk is not the one in memory.
        self._unwritten: set[str] = set()
        # Attempts whose first record may be on disk although adding it failed.
        self._unsure: set[str] = set()
        # Being removed.
        self._leaving: set[str] = set()
        self._observation = Observation()
        self._listener: Callable[[], None] = lambda: None
        self.kill_at: dict[str, float] = {}
        """The time at which an attempt that was asked to end is killed, on the monotonic clock."""
        self.layers: dict[str, tuple[Layer, ...]] = {}
        """The layers of the image of each attempt in PULLING, with their progress."""
        self._pauses: dict[str, Pause] = {}

    def __contains__(self, attempt_id: str) -> bool:
        """Returns whether there is a record of the attempt."""
        return attempt_id in self._records

    def __iter__(self) -> Iterator[Record]:
        """Yields all current records."""
        return iter(list(self._records.values()))

    async def open(self, listener: Callable[[], None]) -> dict[str, Record | None]:
        """Reads all records; returns the attempts whose record is lost, with its copy if there is one.

        `listener` is called at each change.
        """
        self._listener = listener
        loaded = await RECORDS.run(self._store.load)
        self._records = loaded.records
        return loaded.lost

    def record(self, attempt_id: str) -> Record:
        """Returns the record of an attempt. Raises UnknownAttemptError."""
        if (record := self._records.get(attempt_id)) is None:
            raise UnknownAttemptError(f"there is no attempt {attempt_id}")
        return record

    def first_process(self, attempt_id: str) -> Process | None:
        """Returns the process of the node that an attempt lives and ends with; None when there is none any more."""
        record = self._records.get(attempt_id)
        return None if record is None or record.phase.ended else record.init

    def directory(self, attempt_id: str) -> Path:
        """Returns the attempt's directory."""
        return self._store.directory(attempt_id)

    def was_removed(self, attempt_id: str) -> bool:
        """Returns whether there once was a record, and it was removed."""
        return self._store.was_removed(attempt_id)

    def lock(self, attempt_id: str) -> asyncio.Lock:
        """Returns the lock that every change of the attempt must hold."""
        return self._locks.setdefault(attempt_id, asyncio.Lock())

    async def add(self, record: Record, *, lasting: bool = True) -> bool:
        """Makes a first record; False when there is one already. Raises OSError.

        With `lasting` it outlives a crash of the node when this returns, else from `make_lasting` on.
        """
        if record.id in self._records:
            return False
        was_tried = record.id in self._unsure
        self._unsure.add(record.id)
        if not await RECORDS.run(self._store.add, record):
            if not was_tried:
                self._unsure.discard(record.id)
                return False
            # The record of that try, of which nothing else was made.
            await self.save(record)
        if lasting:
            await self.make_lasting(record.id)
        self._unsure.discard(record.id)
        self.show(record)
        return True

    def put(self, record: Record) -> bool:
        """Makes a first record of an attempt that was shown, to be made lasting; False when there is one already.
        Blocks. Raises OSError, and then the attempt is to be forgotten.
        """
        if not self._store.add(record):
            if record.id not in self._unsure:
                return False
            # The record of a try that failed, of which nothing else was made.
            self._store.write(record)
        self._unsure.discard(record.id)
        return True

    async def make_lasting(self, attempt_id: str) -> None:
        """Has a record outlive a crash of the node. Raises OSError."""
        await RECORDS.run(self._store.make_lasting, attempt_id)

    async def write(self, record: Record) -> None:
        """Replaces a record. Raises OSError, and then the former one stands."""
        await self.save(record)
        self.show(record)

    async def note(self, record: Record) -> None:
        """Replaces a record whether or not the disk takes it: for what is done, or has to be, in any case.

        What the disk does not take, or not in time, is written later; an agent that restarts
        before finds the former record.
        """
        saving = asyncio.ensure_future(self.save(record))
        # Retrieved whatever becomes of the caller: asyncio would log it.
        saving.add_done_callback(lambda saved: saved.cancelled() or saved.exception())
        done, _ = await asyncio.wait({saving}, timeout=NOTE_TIMEOUT)
        if not done or saving.exception() is not None:
            _log.error(
                "the record of attempt %s cannot be written: %s", record.id, saving.exception() if done else "hung"
            )
            self._unwritten.add(record.id)
        self.show(record)

    async def save(self, record: Record) -> None:
        """Replaces a record on disk, for `show` to take it up. Raises OSError."""
        # One at a time: a thread that hangs must not write an old record after a newer one.
        async with self._saving.setdefault(record.id, asyncio.Lock()):
            await RECORDS.run(self._store.write, record)
        self._unwritten.discard(record.id)

    async def write_late(self) -> None:
        """Writes what the disk did not take at first, until it is cancelled."""
        while True:
            await asyncio.sleep(LATE_INTERVAL)
            for attempt_id in sorted(self._unwritten):
                async with self._saving.setdefault(attempt_id, asyncio.Lock()):
                    record = self._records.get(attempt_id)
                    if record is not None and attempt_id in self._unwritten:
                        with contextlib.suppress(OSError):
                            await RECORDS.run(self._store.write, record)
                            self._unwritten.discard(attempt_id)

    async def restore(self, record: Record) -> None:
        """Takes a record that was lost and rebuilt; what cannot be written now is known in memory only."""
        await self.note(record)

    async def give_reason(self, attempt_id: str, reason: str, message: str) -> bool:
        """Records why an attempt is about to be ended; False when it ends already.
        Raises UnknownAttemptError, OSError.
        """
        async with self.lock(attempt_id):
            record = self.record(attempt_id)
            if record.init is None or record.reason not in {"", reason} or record.phase is Phase.STOPPING:
                return False
            if not record.reason:
                # A full disk is what it is ended for.
                await self.note(replace(record, reason=reason, message=message))
        return True

    def show(self, record: Record) -> None:
        """Takes up a record that is on disk, or whose loss does no harm."""
        self._records[record.id] = record
        self.changed()

    def show_unkillable(self, attempt_id: str) -> None:
        """Says of an attempt that it was killed and does not end."""
        if attempt_id in self and (record := self.record(attempt_id)).message != MESSAGE and not record.phase.ended:
            self.show(replace(record, message=MESSAGE))

    def show_pauses(self, pauses: Mapping[str, str]) -> None:
        """Says of each attempt what keeps it from running, in words; the others run."""
        before = self._pauses
        self._pauses = {
            attempt_id: known
            if (known := before.get(attempt_id)) is not None and known.message == message
            else Pause(message, time.time())
            for attempt_id, message in pauses.items()
        }
        if self._pauses != before:
            self.changed()

    def is_paused(self, attempt_id: str) -> bool:
        """Returns whether something was last seen to keep an attempt from running."""
        return attempt_id in self._pauses

    def forget(self, attempt_id: str) -> None:
        """Drops an attempt that was shown, and could not be added: the next try replaces what this one has left."""
        del self._records[attempt_id]
        self._unsure.add(attempt_id)
        self.changed()

    def changed(self) -> None:
        """Notifies the listener of a change."""
        self._listener()

    async def remove(self, attempt_id: str) -> None:
        """Removes a record and the attempt's directory, and remembers that it was there. Raises OSError."""
        # Before the files are deleted: a reader of the output must not take it for empty meanwhile.
        self._leaving.add(attempt_id)
        try:
            await RECORDS.run(self._store.remove, attempt_id)
        finally:
            self._leaving.discard(attempt_id)
        del self._records[attempt_id]
        self._locks.pop(attempt_id, None)
        self._saving.pop(attempt_id, None)
        self._unwritten.discard(attempt_id)
        self._unsure.discard(attempt_id)
        self.changed()

    def output(self, attempt_id: str) -> Output:
        """Returns the output of the attempt. Raises UnknownAttemptError."""
        self.record(attempt_id)
        if attempt_id in self._leaving:
            raise UnknownAttemptError(f"attempt {attempt_id} is being removed")

        def over() -> bool:
            record = self._records.get(attempt_id)
            return record is None or record.phase.ended

        return Output(self.directory(attempt_id) / OUTPUT, over)

    async def bound_outputs(self, limit: int, pump: Path) -> None:
        """Keeps what running attempts print within so many bytes each, and a pump running for each; does not return."""
        while True:
            await asyncio.sleep(BOUND_INTERVAL)
            for record in self:
                if not record.phase.ended:
                    with contextlib.suppress(UnknownAttemptError, OSError):
                        await in_thread(self.output(record.id).look, limit, time.time())
                    if record.init is not None:
                        try:
                            await in_thread(revive, pump, self.directory(record.id), limit)
                        except OSError:
                            _log.exception("the output of attempt %s is not taken", record.id)

    def observed(self) -> dict[str, ObservedAttempt]:
        """Returns all attempts by id, as the outside sees them."""
        return self._observation.of(self._records, self.kill_at, self.layers, self._pauses)
