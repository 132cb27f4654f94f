"""Bounds how often the progress of fetching an image is written: agents say how often it changes,
and the journal keeps each entry. Pure.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from retinue.manager.domain.session.attempts import AttemptKey, LayerReport

PROGRESS_SECONDS = 1.0
Layers = tuple[LayerReport, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of pulling the image of an attempt of a session."""

    session_id: uuid.UUID
    key: AttemptKey
    layers: Layers


class PullProgress:
    """Lets the progress of an attempt be written once in `PROGRESS_SECONDS`,
    and keeps the last of what came meanwhile until then. Times are in seconds from any moment on.
    """

    def __init__(self) -> None:
        self._written: dict[AttemptKey, float] = {}
        self._later: dict[AttemptKey, Progress] = {}

    def offer(self, progress: Progress, now: float) -> bool:
        """Takes what an agent reports; returns whether it is to be written at once."""
        self._later.pop(progress.key, None)
        if now - self._written.get(progress.key, -PROGRESS_SECONDS) < PROGRESS_SECONDS:
            self._later[progress.key] = progress
            return False
        self._written[progress.key] = now
        return True

    def end(self, key: AttemptKey) -> None:
        """Forgets an attempt that fetches nothing any more."""
        self._later.pop(key, None)

    def due(self, now: float) -> list[Progress]:
        """Returns what is to be written by now, and counts it as written."""
        self._written = {key: when for key, when in self._written.items() if now - when < PROGRESS_SECONDS}
        due = [progress for key, progress in self._later.items() if key not in self._written]
        for progress in due:
            del self._later[progress.key]
            self._written[progress.key] = now
        return due
