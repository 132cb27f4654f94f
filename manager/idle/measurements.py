"""Measures the use of the sessions whose utilisation is checked: gathers samples of agents by attempt,
and sums them by session.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.manager.domain.idle.policy import LOOKS_AT, Checker, IdlePolicy
from retinue.manager.domain.idle.utilization import Reading, Window, WindowRecord, period_of, restored_window
from retinue.manager.domain.session.attempts import AttemptUsage, attempt_id
from retinue.manager.domain.session.states import SessionType
from retinue.manager.domain.session.usage import Meter, Sample, share_of
from retinue.manager.store.sessions import idle as idle_store
from retinue.manager.store.sessions.idle import MeasuredKernel, MeasuredUse, RunningSession

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Collection, Iterable, Mapping

    from retinue.manager.store.postgres.database import Transaction

_log = logging.getLogger(__name__)

# So many missed samples do not hide a session; more do.
_MISSED_SAMPLES = 4
# A reading is good for some seconds more than samples are.
_PATIENCE = 5.0
# Readers of the store get the next one only after this part of the window.
_KEPT_PARTS = 8


class Measurements:
    """Meters of attempts, and windows and readings of sessions.

    Sessions to measure are named again each time: `begin`, then `take_in` for portions of the sessions, then `finish`,
    which forgets all others.
    """

    def __init__(self) -> None:
        # By attempt, with the longest time between two samples, and whose attempt it is; by session.
        self._meters: dict[str, tuple[Meter, float, str]] = {}
        self._windows: dict[uuid.UUID, Window] = {}
        self._readings: dict[uuid.UUID, Reading] = {}
        self._named: set[str] = set()
        self._seen: set[uuid.UUID] = set()
        self._intervals: dict[str, float] = {}

    def add(self, agent_id: str, samples: Iterable[AttemptUsage]) -> int:
        """Takes in what an agent says of its attempts; those that are not measured are left out.

        Returns how many were attempts of other agents: of these nothing is believed.
        """
        strays = 0
        for sample in samples:
            if (found := self._meters.get(sample.attempt_id)) is not None:
                meter, longest, owner = found
                if owner == agent_id:
                    meter.add(Sample(sample.clock, sample.cpu, sample.memory), longest)
                else:
                    strays += 1
        return strays

    def reading(self, session_id: uuid.UUID) -> Reading | None:
        """Returns the last known result of a session's window; None for a session without one, or not yet."""
        return self._readings.get(session_id)

    def begin(self) -> None:
        """All sessions are gone through from here on."""
        self._named, self._seen, self._intervals = set(), set(), {}

    def finish(self) -> dict[str, float]:
        """Ends the iteration over the sessions. Returns which agents have to report what their attempts use,
        and every how many seconds.
        """
        self._meters = {name: meter for name, meter in self._meters.items() if name in self._named}
        self._windows = {key: window for key, window in self._windows.items() if key in self._seen}
        self._readings = {key: reading for key, reading in self._readings.items() if key in self._seen}
        return self._intervals

    async def take_in(
        self, tx: Transaction, rows: Iterable[RunningSession], policy_of: Callable[[str, str], IdlePolicy], now: float
    ) -> None:
        """Adds what the kernels of sessions have used to their windows,
        and keeps those that are worth it in the store.
        """
        looked_at: dict[uuid.UUID, tuple[RunningSession, IdlePolicy, float]] = {}
        for row in rows:
            policy = policy_of(row.resource_group, row.owner)
            width = policy.limit(Checker.UTILIZATION)
            if width is not None and SessionType(row.type) in LOOKS_AT[Checker.UTILIZATION]:
                looked_at[row.id] = (row, policy, width)
        if not looked_at:
            return
        kernels: dict[uuid.UUID, list[MeasuredKernel]] = {}
        for kernel in await idle_store.read_kernels(tx, looked_at):
            kernels.setdefault(kernel.session_id, []).append(kernel)
        unknown = [session_id for session_id in looked_at if session_id not in self._windows]
        stored = await idle_store.read_windows(tx, unknown) if unknown else {}
        kept = []
        for session_id, (row, policy, width) in looked_at.items():
            self._seen.add(session_id)
            try:
                window = self._window(row, width, stored.get(session_id))
                found = self._measure(row, kernels.get(session_id, ()), policy, window, now)
            except Exception as error:  # noqa: BLE001  # logged; the other sessions are measured
                _log.error("what session %s uses is not known: %r", session_id, error)
                continue
            if found is not None:
                kept.append(MeasuredUse(session_id, window.record(), found))
        if kept:
            await idle_store.keep_windows(tx, kept)

    def _measure(
        self, row: RunningSession, kernels: Collection[MeasuredKernel], policy: IdlePolicy, window: Window, now: float
    ) -> Reading | None:
        """Adds what a session has used to its window; returns the reading to be kept if it is worth it."""
        longest = _MISSED_SAMPLES * period_of(window.width)
        parts = [(self._meter(kernel, window.width, longest), kernel.slots) for kernel in kernels]
        moved = _take(window, parts, now, row.start + (policy.grace or 0.0))
        if moved is None:
            return None
        reading = window.read(policy.thresholds, any_slot=bool(policy.any_slot), at=now, patience=longest + _PATIENCE)
        if reading is None:
            return None
        self._readings[row.id] = reading
        return replace(reading, patience=reading.patience + window.width / _KEPT_PARTS) if moved else None

    def _window(self, row: RunningSession, width: float, stored: WindowRecord | None) -> Window:
        """The window at hand, the one kept, or a new one for another start or width."""
        session_id: uuid.UUID = row.id
        window = self._windows.get(session_id)
        if window is None:
            window = restored_window(stored, row.start, width)
        elif (window.start, window.width) != (row.start, width):
            window = Window(row.start, width)
            self._readings.pop(session_id, None)
        self._windows[session_id] = window
        return window

    def _meter(self, kernel: MeasuredKernel, width: float, longest: float) -> Meter:
        """Returns the meter of a kernel's attempt, whose agent has to report samples for a window of such a width."""
        name = attempt_id(kernel.kernel_id, kernel.epoch)
        meter = self._meters[name][0] if name in self._meters else Meter()
        self._meters[name] = (meter, longest, kernel.agent_id)
        self._named.add(name)
        agent_id, period = kernel.agent_id, period_of(width)
        self._intervals[agent_id] = min(period, self._intervals.get(agent_id, period))
        return meter


def _take(
    window: Window, parts: Collection[tuple[Meter, Mapping[str, int]]], now: float, grace_end: float
) -> bool | None:
    """Adds what kernels used to a window; None when that is not known of all of them, or does not count yet,
    else whether to keep it.
    """
    if not parts or any(meter.seconds <= 0 for meter, _ in parts):
        return None
    seconds = min(meter.seconds for meter, _ in parts)
    shares = share_of([(slots, meter.take()) for meter, slots in parts])
    return None if now - seconds < grace_end else window.add(seconds, shares)
