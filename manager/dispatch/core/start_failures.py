"""Finds agents on which starts fail again and again, for different sessions: the node is broken, not what is started.

Such an agent is avoided for a pause, and then tried with whatever comes: a start that succeeds forgets all, one that
fails makes the next pause twice as long. Without that, an empty broken node draws one session after the other. Pure.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from retinue.manager.session.core.attempts import AttemptStatus
from retinue.manager.session.core.states import ENDED_OBSERVATIONS, Observed
from retinue.rpc.core.reasons import AttemptReason

# So many sessions, within so many seconds, without a start that succeeds.
SESSIONS, WINDOW = 3, 600.0
MIN_PAUSE, MAX_PAUSE = 300.0, 3600.0
# Where the node may be to blame; others are of what was asked for.
_REASONS = frozenset(
    {
        AttemptReason.START_FAILED,
        AttemptReason.GUEST_FAILED,
        AttemptReason.IMAGE_PULL_FAILED,
        AttemptReason.NODE_REFUSED,
    }
)


@dataclass(slots=True)
class _Record:
    # When a start failed last, by session, and what was said then.
    sessions: dict[uuid.UUID, float] = field(default_factory=dict)
    message: str = ""
    pause: float = 0.0
    until: float | None = None


class StartFailures:
    """The failed starts of all agents since the last one that succeeded."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._changed: set[str] = set()

    def note(self, agent_id: str, session_id: uuid.UUID, status: AttemptStatus, now: float) -> None:
        """Takes in what an agent says of an attempt."""
        if status.state in (Observed.HELD, Observed.RUNNING):
            if (record := self._records.pop(agent_id, None)) is not None and record.pause:
                self._changed.add(agent_id)
        elif status.state in ENDED_OBSERVATIONS and status.exit_code is None and status.reason in _REASONS:
            record = self._records.setdefault(agent_id, _Record())
            record.sessions = {known: at for known, at in record.sessions.items() if now - at <= WINDOW}
            record.sessions[session_id] = now
            record.message = f"{status.reason}: {status.message}" if status.message else str(status.reason)
            # One that was tried after its pause has not been mended.
            if record.until is None and (record.pause or len(record.sessions) >= SESSIONS):
                record.pause = min(max(MIN_PAUSE, 2 * record.pause), MAX_PAUSE)
                record.until = now + record.pause
                self._changed.add(agent_id)

    def changes(self, now: float) -> Mapping[str, str | None]:
        """Returns the agents that are to be avoided from now on, with why, or (None) no longer; each change once."""
        for agent_id, record in self._records.items():
            if record.until is not None and record.until <= now:
                record.until, record.sessions = None, {}
                self._changed.add(agent_id)
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
            f"{sessions} could not start there, and none could since; it is tried again after "
            f"{record.pause / 60:.0f} min; the last one: {record.message}"
        )
