"""Finds agents on which starts fail again and again, for different sessions: the node is broken, not what is started.

A failed start counts once a later attempt of the same kernel is ready on another agent: a request that fails everywhere
says nothing of a node. Such an agent is avoided for a pause, and then tried with whatever comes: a start
that succeeds forgets all, one that fails makes the next pause twice as long. Without that, an empty broken node draws
one session after the other. Pure.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.manager.domain.session.states import ENDED_OBSERVATIONS, Observed
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.manager.domain.session.attempts import AttemptStatus

# So many sessions, within so many seconds, without a start that succeeds.
SESSIONS, WINDOW = 3, 600.0
# A failed start waits so long for the kernel to be ready elsewhere: in a full group, that may take a while.
WAIT = 3600.0
MIN_PAUSE, MAX_PAUSE = 300.0, 3600.0
# Failures that a node may cause; the request causes the others.
_REASONS = frozenset(
    {
        AttemptReason.START_FAILED,
        AttemptReason.GUEST_FAILED,
        AttemptReason.IMAGE_PULL_FAILED,
        AttemptReason.NODE_REFUSED,
        AttemptReason.DEVICE_MISSING,
    }
)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed start, with what was said; of a fetch, whose it was."""

    session_id: uuid.UUID
    epoch: int
    time: float
    message: str
    # A user's own registry can serve one node and fail another: the fetches of one owner do not count alone.
    fetched_by: str


@dataclass(slots=True)
class _Record:
    # By kernel: not known to be the node's fault yet.
    waiting: dict[uuid.UUID, _Failure] = field(default_factory=dict)
    # By session: the node's fault, with when that was known.
    sessions: dict[uuid.UUID, tuple[float, _Failure]] = field(default_factory=dict)
    message: str = ""
    pause: float = 0.0
    until: float | None = None

    def count(self, failure: _Failure, now: float) -> bool:
        """Takes in a failure that is the node's fault; returns whether the agent is to be avoided."""
        self.sessions = {known: each for known, each in self.sessions.items() if now - each[0] <= WINDOW}
        self.sessions[failure.session_id] = now, failure
        self.message = failure.message
        if self.until is not None or len(self.sessions) < (1 if self.pause else SESSIONS):
            return False
        owners = {each.fetched_by for _, each in self.sessions.values()}
        if len(owners) == 1 and "" not in owners:
            return False
        self.pause = min(max(MIN_PAUSE, 2 * self.pause), MAX_PAUSE)
        self.until = now + self.pause
        return True


class StartFailures:
    """The failed starts of all agents since the last one that succeeded."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._changed: set[str] = set()

    def note(self, agent_id: str, session_id: uuid.UUID, owner: str, status: AttemptStatus, now: float) -> None:
        """Takes in a new state of an attempt on an agent, and whose session it is of."""
        kernel_id, epoch = status.key
        if status.state in (Observed.HELD, Observed.RUNNING):
            if (record := self._records.pop(agent_id, None)) is not None and record.pause:
                self._changed.add(agent_id)
            for other, record in self._records.items():
                failure = record.waiting.get(kernel_id)
                if failure is not None and failure.epoch < epoch:
                    del record.waiting[kernel_id]
                    if record.count(failure, now):
                        self._changed.add(other)
        elif status.state in ENDED_OBSERVATIONS and status.exit_code is None and status.reason in _REASONS:
            message = f"{status.reason}: {status.message}" if status.message else str(status.reason)
            fetched_by = owner if status.reason == AttemptReason.IMAGE_PULL_FAILED else ""
            waiting = self._records.setdefault(agent_id, _Record()).waiting
            waiting[kernel_id] = _Failure(session_id, epoch, now, message, fetched_by)

    def changes(self, now: float) -> Mapping[str, str | None]:
        """Returns the agents that are to be avoided from now on, with why, or (None) no longer; each change once."""
        for agent_id, record in list(self._records.items()):
            record.waiting = {id_: failure for id_, failure in record.waiting.items() if now - failure.time <= WAIT}
            if record.until is not None and record.until <= now:
                record.until, record.waiting, record.sessions = None, {}, {}
                self._changed.add(agent_id)
            if not record.waiting and not record.sessions and not record.pause:
                del self._records[agent_id]
        changed = {agent_id: self._why(agent_id) for agent_id in sorted(self._changed)}
        self._changed.clear()
        return changed

    def put_back(self, agent_id: str) -> None:
        """Has a change returned again, as it could not be written."""
        self._changed.add(agent_id)

    def _why(self, agent_id: str) -> str | None:
        record = self._records.get(agent_id)
        if record is None or record.until is None:
            return None
        number = len(record.sessions)
        sessions = f"{number} sessions" if number > 1 else "another session"
        return (
            f"{sessions} failed to start there and started elsewhere, and no start has succeeded since; it is tried again "
            f"after {record.pause / 60:.0f} min; the last failure: {record.message}"
        )
