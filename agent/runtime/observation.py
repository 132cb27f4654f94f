"""Derives the observed state of attempts from their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.agent.attempts import ObservedAttempt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.agent.attempts import Layer, Pause
    from retinue.agent.runtime.attempt_records import Record


class Observation:
    """Observed states of attempts. Read on every change of any attempt,
    so each one is rebuilt only when its own record changes.
    """

    def __init__(self) -> None:
        """Holds no observation yet."""
        self._seen: dict[str, tuple[Record, ObservedAttempt]] = {}

    def of(
        self,
        records: Mapping[str, Record],
        kill_at: Mapping[str, float],
        layers: Mapping[str, tuple[Layer, ...]],
        pauses: Mapping[str, Pause],
    ) -> dict[str, ObservedAttempt]:
        """Returns all attempts by id; `kill_at` is on the monotonic clock,
        `layers` are those of images that are being fetched, `pauses` those of kernels that are paused.
        """
        seen = {}
        for attempt_id, record in records.items():
            known = self._seen.get(attempt_id)
            due, fetched = kill_at.get(attempt_id), layers.get(attempt_id, ())
            pause = None if record.phase.ended else pauses.get(attempt_id)
            # Records are replaced, never changed.
            if (
                known is None
                or known[0] is not record
                or known[1].kill_at != due
                or known[1].pause is not pause
                or (known[1].layers is not fetched and known[1].layers != fetched)
            ):
                known = record, _observe(record, due, fetched, pause)
            seen[attempt_id] = known
        self._seen = seen
        return {attempt_id: known[1] for attempt_id, known in seen.items()}


def _observe(record: Record, kill_at: float | None, layers: tuple[Layer, ...], pause: Pause | None) -> ObservedAttempt:
    return ObservedAttempt(
        id=record.id,
        session_id=record.session_id,
        kernel_id=record.kernel_id,
        networked=record.networked,
        egress=record.egress,
        phase=record.phase,
        attached=record.attached,
        exit_code=record.exit_code,
        reason=record.reason,
        message=record.message,
        start_time=record.start_time,
        end_time=record.end_time,
        stop_grace=record.stop_grace,
        kill_at=kill_at,
        log_size=record.log_size,
        image=record.image,
        layers=layers,
        rebuilt=record.rebuilt,
        usage=record.usage,
        memory_kills=record.memory_kills if record.phase.ended else _power_of_two(record.memory_kills),
        memory_kill_time=record.first_memory_kill,
        pause=pause,
    )


def _power_of_two(number: int) -> int:
    return 1 << number.bit_length() - 1 if number else 0
