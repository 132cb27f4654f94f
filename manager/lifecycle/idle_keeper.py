"""Ends running sessions that nobody needs, by the policies of their groups, after having warned them. Only the leader does it.

What decides is pure (`idle`, `utilization`); here is read what they look at, and done what they say.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping

from manager.fleet.desired import AttemptUsage
from manager.lifecycle import idle
from manager.lifecycle.desires import Concerned, attempt_id
from manager.lifecycle.idle import Checker, IdlePolicy, Seen, Verdict, stored_policy
from manager.lifecycle.states import SessionType
from manager.lifecycle.utilization import (
    Meter,
    Reading,
    Sample,
    Window,
    period_of,
    share_of,
    stored_reading,
    stored_window,
)
from manager.lifecycle.working_set import put_back, take_out
from manager.store import attempts, conditions, leadership
from manager.store import idle as idle_store
from manager.store.database import Database, Transaction
from manager.store.recordset import Row

_log = logging.getLogger(__name__)

# Seconds between two looks: as soon as something can be due, and within these; and at least so many times what a look takes.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _REST = 0.5, 5.0, 10.0
# A look that comes this long after the one before: the process stood still.
_STOOD_STILL = 4 * _LONGEST_PAUSE
# So many missed samples do not hide a session; more do.
_MISSED_SAMPLES = 4
_TYPES = frozenset[SessionType]().union(*idle.LOOKS_AT.values())


class Policies:
    """All policies, as they were read at one time."""

    def __init__(self, groups: Mapping[str, Row], users: Mapping[str, Row]) -> None:
        self.groups = {name: stored_policy(stored) for name, stored in groups.items()}
        self.users = {name: stored_policy(stored) for name, stored in users.items()}

    def of(self, group: str, owner: str) -> IdlePolicy:
        """The policy for sessions of a user in a group."""
        return self.groups.get(group, idle.NOTHING).then(self.users.get(owner, idle.NOTHING))

    def all(self) -> Iterable[IdlePolicy]:
        """Every policy and override by itself."""
        return (*self.groups.values(), *self.users.values())


def seen_in(row: Row, reading: Reading | None = None) -> Seen:
    """A row of `read_running` as a policy looks at it; with a reading that is newer than the one kept."""
    return Seen(
        type=SessionType(row["type"]),
        start=row["start"],
        interaction=row["interaction"],
        paused=row["paused"],
        reachable=row["reachable"],
        extended_until=row["extended_until"],
        warned={Checker(name): at for name, at in row["warned"].items()},
        reading=reading or stored_reading(row["reading"]),
    )


class IdleKeeper:
    """Looks at all running sessions that a policy concerns, again and again."""

    def __init__(
        self,
        database: Database,
        term: int,
        committed: Callable[[Concerned], None],
        watch_usage: Callable[[Mapping[str, float]], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`watch_usage` is told which agents have to tell what their attempts use, and every how many seconds."""
        self._database = database
        self._term = term
        self._committed = committed
        self._watch_usage = watch_usage
        self._monotonic = monotonic
        self._looked: float | None = None
        # Of sessions whose utilisation is looked at: by attempt, with the longest time between two samples, and by session.
        self._meters: dict[str, tuple[Meter, float]] = {}
        self._windows: dict[uuid.UUID, Window] = {}
        self._readings: dict[uuid.UUID, Reading] = {}

    def used(self, samples: Iterable[AttemptUsage]) -> None:
        """An agent says what its attempts have used."""
        for sample in samples:
            if (found := self._meters.get(sample.attempt_id)) is not None:
                meter, longest = found
                meter.add(Sample(sample.clock, sample.cpu, sample.memory), longest)

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            began = self._monotonic()
            pause = await self.look()
            # However many sessions there are, most of the time is not spent on looking at them.
            await asyncio.sleep(max(pause, _REST * (self._monotonic() - began)))

    async def look(self) -> float:
        """Looks once; returns after how many seconds something can be due."""
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            before, now = await idle_store.note_look(tx)
            moment = self._monotonic()
            elapsed = 0.0 if self._looked is None else moment - self._looked
            self._looked = moment
            policies = Policies(*await idle_store.read_policies(tx))
            if lost := idle.unwatched(before, now, elapsed, _STOOD_STILL):
                _log.info("nobody was listened to for %.0f s, which count as idle for no session", lost)
                await idle_store.pause(tx, lost)
            rows = await idle_store.read_running(tx, _TYPES, groups=policies.groups, owners=policies.users)
            silent = [row["id"] for row in rows if not row["reachable"]]
            if silent and before is not None and not lost:
                await idle_store.pause(tx, now - before, silent)
            period = await self._measure(tx, rows, policies, now)
        verdicts = {
            row["id"]: idle.judge(
                policies.of(row["resource_group"], row["owner"]), seen_in(row, self._readings.get(row["id"])), now
            )
            for row in rows
        }
        await self._warn(rows, verdicts, now)
        for session_id, verdict in verdicts.items():
            if verdict.end is not None:
                await self._end(session_id, policies)
        limits = [
            limit for policy in policies.all() for checker in Checker if (limit := policy.limit(checker)) is not None
        ]
        due = [left for verdict in verdicts.values() if (left := verdict.next_look) is not None]
        # Warnings come before ends, and sessions begin without a word here: a part of what is left is soon enough for both.
        soon = min([*(left / 2 for left in due), *(limit / 8 for limit in limits), period], default=_LONGEST_PAUSE)
        return min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, soon))

    async def _measure(self, tx: Transaction, rows: Iterable[Row], policies: Policies, now: float) -> float:
        """Takes in what the kernels of sessions have used, keeps what is worth it, and asks agents to tell more; returns when there will be more."""
        widths: dict[uuid.UUID, tuple[Row, IdlePolicy, float]] = {}
        for row in rows:
            policy = policies.of(row["resource_group"], row["owner"])
            width = policy.limit(Checker.UTILIZATION)
            if width is not None and SessionType(row["type"]) in idle.LOOKS_AT[Checker.UTILIZATION]:
                widths[row["id"]] = (row, policy, width)
        kernels: dict[uuid.UUID, list[tuple[str, Row]]] = {}
        for kernel in await idle_store.read_kernels(tx, widths) if widths else ():
            name = attempt_id(kernel["kernel_id"], kernel["epoch"])
            kernels.setdefault(kernel["session_id"], []).append((name, kernel))
        await self._remember(tx, widths)
        intervals: dict[str, float] = {}
        meters: dict[str, tuple[Meter, float]] = {}
        kept = []
        for session_id, (row, policy, width) in widths.items():
            period = period_of(width)
            longest = _MISSED_SAMPLES * period
            parts = kernels.get(session_id, [])
            for name, kernel in parts:
                meters[name] = (self._meters[name][0] if name in self._meters else Meter(), longest)
                intervals[kernel["agent_id"]] = min(period, intervals.get(kernel["agent_id"], period))
            moved = self._take(
                session_id, [(meters[name][0], kernel["slots"]) for name, kernel in parts], row, policy, now
            )
            reading = self._windows[session_id].read(
                policy.thresholds, any_slot=bool(policy.any_slot), at=now, patience=longest + _LONGEST_PAUSE
            )
            if moved is not None and reading is not None:
                self._readings[session_id] = reading
            if moved and reading is not None:
                # Whoever reads it in the store gets the next one only after another step.
                told = {**reading.to_json(), "patience": reading.patience + width / 8}
                kept.append({"session_id": session_id, "window": self._windows[session_id].to_json(), "reading": told})
        self._meters = meters
        if kept:
            await idle_store.keep_windows(tx, kept)
        self._watch_usage(intervals)
        return min(intervals.values(), default=_LONGEST_PAUSE)

    async def _remember(self, tx: Transaction, widths: Mapping[uuid.UUID, tuple[Row, IdlePolicy, float]]) -> None:
        """Has a window for each session: the one at hand, the one kept, or a new one."""
        unknown = [session_id for session_id in widths if session_id not in self._windows]
        stored = await idle_store.read_windows(tx, unknown) if unknown else {}
        windows = {}
        for session_id, (row, _, width) in widths.items():
            window = self._windows.get(session_id)
            if window is None:
                window = stored_window(stored.get(session_id, {}), row["start"], width)
            elif (window.start, window.width) != (row["start"], width):
                window = Window(row["start"], width)
                self._readings.pop(session_id, None)
            windows[session_id] = window
        self._windows = windows
        self._readings = {
            session_id: reading for session_id, reading in self._readings.items() if session_id in windows
        }

    def _take(
        self,
        session_id: uuid.UUID,
        parts: Collection[tuple[Meter, Mapping[str, int]]],
        row: Row,
        policy: IdlePolicy,
        now: float,
    ) -> bool | None:
        """Adds what the kernels of a session used to its window; None when that is not known of all of them, else whether to keep it."""
        if not parts or any(meter.seconds <= 0 for meter, _ in parts):
            return None
        seconds = min(meter.seconds for meter, _ in parts)
        shares = share_of([(slots, meter.take()) for meter, slots in parts])
        if now - seconds < row["start"] + (policy.grace or 0.0):
            return None
        return self._windows[session_id].add(seconds, shares)

    async def _warn(self, rows: Iterable[Row], verdicts: Mapping[uuid.UUID, Verdict], now: float) -> None:
        """Gives warnings and takes them back, with the journal, in one commit."""
        warned: dict[uuid.UUID, dict[str, float]] = {}
        texts: dict[uuid.UUID, dict[str, str]] = {}
        for row in rows:
            verdict = verdicts[row["id"]]
            if verdict.end is not None or not (verdict.warn or verdict.take_back):
                continue
            kept = {name: at for name, at in row["warned"].items() if Checker(name) not in verdict.take_back}
            warned[row["id"]] = {**kept, **{check.checker: now for check in verdict.warn}}
            texts[row["id"]] = {
                **{warning_of(checker): "" for checker in verdict.take_back},
                **{warning_of(check.checker): idle.warning_text(check, now) for check in verdict.warn},
            }
        if not warned:
            return
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await idle_store.set_warned(tx, warned)
            await conditions.set_texts(tx, texts)
        self._committed({})

    async def _end(self, session_id: uuid.UUID, policies: Policies) -> None:
        """Ends a session, unless it was used or extended since it was looked at."""
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            taken = await take_out(tx, [session_id])
            rows = await idle_store.read_running(tx, _TYPES, session_ids=[session_id])
            if not rows:
                return
            row, now = rows[0], await idle_store.read_now(tx)
            policy = policies.of(row["resource_group"], row["owner"])
            check = idle.judge(policy, seen_in(row, self._readings.get(session_id)), now).end
            if check is None:
                return
            _log.info("session %s is ended: %s", session_id, check.measured)
            taken.machines[session_id].end_by_policy(idle.REASONS[check.checker], check.measured)
            await put_back(tx, taken)
            concerned = await attempts.agents_concerned(tx, [session_id])
        self._committed(concerned)


def warning_of(checker: Checker) -> str:
    """The condition of a session that a checker has warned."""
    return f"{checker}_WARNING"
