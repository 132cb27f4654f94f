"""Determines how an attempt ended, from its record and from what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.runtime.disk_use import DISK_EXCEEDED
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from retinue.agent.runtime.attempt_records import Record


KILLED = 128 + 9
"""Exit code of what SIGKILL has ended."""
# Reasons for which an agent ends what runs.
_ENDED_FOR = {DISK_EXCEEDED, AttemptReason.GUEST_FAILED}
OUT_OF_MEMORY = "its memory was used up"
RECENT = 10.0
"""Seconds before its end in which a process of a kernel was killed for want of memory, if that is why it ended: what
waits for a worker may take a while to notice.
"""


@dataclass(frozen=True, slots=True)
class ExitEvidence:
    """What was found of an attempt of which nothing runs any more. `end_time` is in seconds since the epoch,
    None when it is not known.

    `out_of_memory` says whose memory was used up, if any was, and `memory_kills` how many processes were killed for it,
    None when that is not known; `evicted` why the cluster that the node belongs to has
    ended it, or someone by that; `stopped` how the node's container engine has, or someone by it; `failure` how the
    kernel ended without its command's doing, and `said` what its own system said last.
    """

    exit_code: int | None = None
    end_time: float | None = None
    out_of_memory: str = ""
    memory_kills: int | None = None
    failure: str = ""
    said: str = ""
    evicted: str = ""
    stopped: str = ""


def exit_reason(record: Record, evidence: ExitEvidence, *, rebooted: bool, fenced: bool) -> tuple[Phase, str, str]:
    """Returns how an attempt of which nothing is left ended: phase, reason and the same in words. Pure.

    `record` is the last one before the end; an exit code counts only if the command was released. `fenced` says that a
    watchdog has killed it.
    """
    exit_code = evidence.exit_code
    if rebooted and exit_code is None:
        return Phase.EXITED, AttemptReason.NODE_REBOOTED, "the node was restarted"
    if record.phase is Phase.STOPPING or (fenced and exit_code in {None, KILLED}):
        return Phase.EXITED, AttemptReason.STOPPED, "it was stopped"
    if record.start_time is None:
        interrupted = "the agent ended while it was being created"
        default = interrupted if record.phase is Phase.CREATING else "it ended before it was released"
        message = ": ".join(filter(None, (record.message or default, evidence.said)))
        return Phase.FAILED, record.reason or AttemptReason.START_FAILED, message
    return Phase.EXITED, *_end_of_run(record, evidence)


def _ended_for_memory(record: Record, evidence: ExitEvidence) -> bool:
    """Returns whether a command ended as memory was used up: not by itself, long after another process was killed."""
    if not evidence.out_of_memory or evidence.exit_code == 0:
        return False
    if evidence.exit_code is None or (evidence.memory_kills is None and evidence.exit_code == KILLED):
        return True
    if (
        record.last_memory_kill is None
        or (evidence.memory_kills or 0) > record.memory_kills
        or evidence.end_time is None
    ):
        return True
    return evidence.end_time - record.last_memory_kill <= RECENT


def _end_of_run(record: Record, evidence: ExitEvidence) -> tuple[str, str]:
    """Returns why a command that ran ended, by itself or by an action on it: reason and the same in words."""
    exit_code = evidence.exit_code
    if record.reason in _ENDED_FOR and exit_code in {None, KILLED}:
        return record.reason, record.message
    if _ended_for_memory(record, evidence):
        return AttemptReason.OOM_KILLED, evidence.out_of_memory
    if (taken := _taken(evidence)) is not None:
        return taken
    if exit_code is None and evidence.failure:
        return AttemptReason.GUEST_FAILED, evidence.failure
    if exit_code is None:
        return AttemptReason.KILLED, "it was ended from outside, and its exit code is not known"
    return AttemptReason.EXITED, f"its command exited with {exit_code}"


def _taken(evidence: ExitEvidence) -> tuple[str, str] | None:
    """Returns why a command was ended by what its kernel ran on; None when it was not, or has succeeded."""
    if evidence.exit_code == 0:
        return None
    if evidence.evicted:
        return AttemptReason.EVICTED, f"it was evicted: {evidence.evicted}"
    if evidence.stopped:
        return AttemptReason.ENGINE_STOPPED, f"the container engine stopped it: {evidence.stopped}"
    return None
