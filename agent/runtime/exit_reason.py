"""Determines how an attempt ended, from its record and from what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.reasons import AttemptReason
from retinue.agent.runtime.disk_use import DISK_EXCEEDED

if TYPE_CHECKING:
    from retinue.agent.runtime.attempt_records import Record


KILLED = 128 + 9
"""Exit code of what SIGKILL has ended."""


def verdict(
    record: Record, exit_code: int | None, out_of_memory: bool, rebooted: bool, fenced: bool
) -> tuple[Phase, str, str]:
    """Returns how an attempt of which nothing is left ended: phase, reason and the same in words.

    `record` is the last one before the end, `exit_code` that of the command if it was released and the code is known.
    `fenced` says that a watchdog has killed it.
    """
    if rebooted and exit_code is None:
        return Phase.EXITED, AttemptReason.NODE_REBOOTED, "the node was restarted"
    if record.phase is Phase.STOPPING or (fenced and exit_code in {None, KILLED}):
        return Phase.EXITED, AttemptReason.STOPPED, "it was stopped"
    if record.start_time is None:
        interrupted = "the agent ended while it was being created"
        default = interrupted if record.phase is Phase.CREATING else "it ended before it was let go"
        return Phase.FAILED, record.reason or AttemptReason.START_FAILED, record.message or default
    return Phase.EXITED, *_end_of_run(record, exit_code, out_of_memory)


def _end_of_run(record: Record, exit_code: int | None, out_of_memory: bool) -> tuple[str, str]:
    """Returns why a command that ran ended, by itself or by an action on it: reason and the same in words."""
    if record.reason == DISK_EXCEEDED and exit_code in {None, KILLED}:
        return record.reason, record.message
    if out_of_memory and exit_code != 0:
        return AttemptReason.OOM_KILLED, "its memory was used up"
    if exit_code is None:
        return AttemptReason.KILLED, "it was ended from outside, and its exit code is not known"
    return AttemptReason.EXITED, f"its command exited with {exit_code}"
