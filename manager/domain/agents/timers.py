"""Says when a silent agent is suspect and lost. Apart from what is decided by it: a command line needs it, too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timers:
    """In seconds: how often links say something, after which silence an agent is suspect and lost, and how often
    it is tried whether an agent's port is reached, and again while it is not.
    """

    heartbeat: float = 5.0
    suspect_after: float = 20.0
    lost_after: float = 60.0
    probe: float = 30.0
    probe_again: float = 5.0

    @property
    def fence_timeout(self) -> float:
        """Seconds without contact after which an agent stops what may be run on another agent once it is lost:
        it must have ended by then.
        """
        return self.lost_after * 0.6
