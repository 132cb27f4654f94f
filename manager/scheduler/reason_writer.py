"""Writes why sessions wait, for people: a pass finds a reason for everything that it did not place,
and few of them are new.

Reasons are worked out once for sessions of one kind with one verdict, compared as numbers, and only those that changed
are written. A new code is written at once and is an event. Words and amounts of the same code, and tries, follow some
hundred sessions a pass, those first that have waited longest for it, and of a session no more often than each 30 s:
what a pass costs does not depend on how much waits, and a number that changes all the time is not written each time.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.domain.session.events import ReasonChanged
from retinue.manager.scheduler.core.snapshot import Snapshot, explanation_text
from retinue.manager.scheduling.columns import Explanation, Integers, Mask, Verdict
from retinue.manager.scheduling.equivalence import distinct_rows
from retinue.manager.store.journal import journal
from retinue.manager.store.leadership import leadership
from retinue.manager.store.placement import changes, placements

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from retinue.manager.scheduler.cache_sync import CacheSync
    from retinue.manager.scheduling.scheduling_pass import Decisions
    from retinue.manager.store.postgres.database import Database

# So many at most in one commit: every other append to the journal waits for it.
_PORTION = 1000
# So many sessions get new words for an old reason with each pass.
_REFRESHED = 256
# Seconds from one writing of a session's words to the next, while its code stays.
REFRESH_SECONDS = 30.0
# So many reasons are worked out in one pass.
_EXPLAINED = 1000


@dataclass(frozen=True, slots=True)
class PassReasons:
    """The pending reasons of the sessions of a pass."""

    # A reason, for kernels with such hostnames, and its explanation as it is kept.
    reasons: list[tuple[Explanation, int, str]]
    # By session: its reason, or -1 when it does not wait or none was worked out; and whether it was tried in vain.
    reason_of: Integers
    tried: Mask
    # Where the next pass begins to work reasons out.
    next_explained: int


def find_reasons(snapshot: Snapshot, decisions: Decisions, next_explained: int) -> PassReasons:
    """Works out why sessions wait, each reason once, at most some thousand reasons from
    session `next_explained` on. Pure.
    """
    verdicts = decisions.verdicts.astype(np.int64)
    reason_of = np.full(len(verdicts), -1, np.int64)
    waiting = np.flatnonzero(verdicts != Verdict.PLACED)
    quotas = np.where(verdicts == Verdict.OVER_QUOTA, snapshot.accounts, -1)
    labels = np.column_stack((decisions.alike(), quotas, snapshot.hostnames.astype(np.int64)))[waiting]
    first, label_of = distinct_rows(labels)
    order, following = np.argsort(first), 0
    if len(first) > _EXPLAINED:
        order = np.roll(order, -int(np.searchsorted(first[order], next_explained)))[:_EXPLAINED]
        following = int(first[order[-1]]) + 1
    reasons: list[tuple[Explanation, int, str]] = []
    number_of = np.full(len(first), -1, np.int64)
    for label in order.tolist():
        session = int(waiting[first[label]])
        why = decisions.explain(session)
        if why is not None:
            number_of[label] = len(reasons)
            hostnames = int(snapshot.hostnames[session])
            reasons.append((why, hostnames, explanation_text(why, snapshot.hostname_sets[hostnames])))
    reason_of[waiting] = number_of[label_of]
    return PassReasons(reasons, reason_of, verdicts == Verdict.NO_ROOM, following)


class ReasonWriter:
    """Writes the pending reasons of one group."""

    def __init__(
        self,
        database: Database,
        term: int,
        cache_sync: CacheSync,
        group: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._database = database
        self._term = term
        self._cache_sync = cache_sync
        self._group = group
        # Arrival of the session whose words were renewed last.
        self._last = -1

    def collect(self, snapshot: Snapshot, reasons: PassReasons) -> None:
        """Collects why sessions wait; nothing is written yet."""
        queue = self._cache_sync.cache.queue
        queue.prune_reasons()
        if queue.packed == snapshot.packed:
            # Rows are not used twice: one that is still alive is that of the session.
            rows = np.where(queue.alive[snapshot.rows], snapshot.rows, -1)
        else:
            rows = np.fromiter(
                (queue.row_of.get(session_id, -1) for session_id in snapshot.ids), np.int64, len(snapshot.ids)
            )
        numbers = np.array(
            [
                queue.reason_number(why.code, why.message, hostnames, lambda text=text: text)  # type: ignore[misc]
                for why, hostnames, text in reasons.reasons
            ],
            np.int64,
        )
        explained, tried = reasons.reason_of >= 0, reasons.tried & (rows >= 0)
        explained &= rows >= 0
        queue.reason[rows[explained]] = numbers[reasons.reason_of[explained]]
        queue.tries[rows[tried]] += 1

    def note(self, session_id: uuid.UUID, why: Explanation) -> None:
        """Collects why a session waits that a pass found room for; nothing is written yet."""
        queue = self._cache_sync.cache.queue
        if (row := queue.row_of.get(session_id)) is not None:
            queue.reason[row] = queue.reason_number(
                why.code, why.message, int(queue.hostnames[row]), lambda: explanation_text(why, ())
            )

    async def write(self) -> bool:
        """Writes reasons with a new code, a portion of them; returns whether there may be more."""
        rows, codes = self._differing()
        rows = rows[codes][:_PORTION]
        if len(rows):
            await self._write(rows)
        return len(rows) == _PORTION

    async def refresh(self) -> float | None:
        """Writes new words of old reasons, and tries, of some sessions; returns the seconds until others may be written
        again, None when there are none.
        """
        queue, now = self._cache_sync.cache.queue, self._clock()
        rows, codes = self._differing()
        rows = rows[~codes]
        # The clock may begin at 0, with the machine.
        due = np.where(queue.written_at[rows] > 0.0, queue.written_at[rows] + REFRESH_SECONDS, 0.0)
        later = due[due > now]
        rows = rows[due <= now]
        if len(rows) > _REFRESHED:
            arrivals = self._cache_sync.cache.queue.sequence[rows]
            start = int(np.searchsorted(arrivals, self._last, side="right"))
            rows = np.r_[rows[start:], rows[:start]][:_REFRESHED]
        if len(rows):
            self._last = int(self._cache_sync.cache.queue.sequence[rows[-1]])
            await self._write(rows)
        return float(later.min()) - now if len(later) else None

    def _differing(self) -> tuple[Integers, Mask]:
        """Returns rows whose reason or tries are not written, in order of arrival,
        and which of them have another code than written.
        """
        queue = self._cache_sync.cache.queue
        rows = queue.rows_of(self._group)
        reason, written = queue.reason[rows], queue.written_reason[rows]
        differing = (reason != written) | (queue.tries[rows] != queue.written_tries[rows])
        rows, reason, written = rows[differing], reason[differing], written[differing]
        numbers = np.unique(np.r_[reason, written])
        codes = np.array([queue.reasons[number].code for number in numbers.tolist()], dtype=object)
        other = codes[np.searchsorted(numbers, reason)] != codes[np.searchsorted(numbers, written)]
        return rows, np.asarray(other, np.bool_)

    async def _write(self, rows: Integers) -> None:
        queue = self._cache_sync.cache.queue
        ids: list[uuid.UUID] = queue.ids[rows].tolist()
        numbers, which = np.unique(queue.reason[rows], return_inverse=True)
        reasons = [queue.reasons[number] for number in numbers.tolist()]
        tries, now = queue.tries[rows].copy(), self._clock()
        async with self._database.transaction() as tx:
            writing = placements.writing_reasons(
                [(reason.code, reason.message, reason.explanation) for reason in reasons],
                ids,
                which.tolist(),
                tries.tolist(),
            )
            answers = await tx.pipeline(leadership.checking(self._term), changes.UNMARKED, writing)
            changed = answers.of(writing)
            await journal.append(
                tx,
                [
                    journal.Entry(
                        session_id=row.session_id,
                        owner=row.owner,
                        project=row.project,
                        body=ReasonChanged(row.reason, row.message),
                    )
                    for row in changed
                ],
            )
        # The queue may have moved meanwhile, and reasons may have other numbers.
        for session_id, position, tried in zip(ids, which.tolist(), tries.tolist(), strict=True):
            row = queue.row_of.get(session_id)
            if row is not None:
                reason, hostnames = reasons[position], int(queue.hostnames[row])
                queue.written_reason[row] = queue.reason_number(
                    reason.code,
                    reason.message,
                    hostnames,
                    lambda reason=reason: reason.explanation,  # type: ignore[misc]
                )
                queue.written_tries[row] = tried
                queue.written_at[row] = now
