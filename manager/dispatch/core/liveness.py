"""Decides from an agent's silence whether it is lost. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.manager.scheduling.records import AgentState


@dataclass(frozen=True, slots=True)
class Timers:
    """In seconds: how often links say something, and after which silence an agent is suspect and lost."""

    heartbeat: float = 5.0
    suspect_after: float = 20.0
    lost_after: float = 60.0

    @property
    def fence_timeout(self) -> float:
        """Seconds without contact after which an agent stops what may be run on another agent once it is lost:
        it must have ended by then.
        """
        return self.lost_after * 0.6


def verdict(silence: float, timers: Timers) -> AgentState:
    """Returns the state of an agent that was heard in this term, and has been silent for so many seconds since."""
    if silence >= timers.lost_after:
        return AgentState.LOST
    return AgentState.SUSPECT if silence >= timers.suspect_after else AgentState.ALIVE


def worsened(state: AgentState, silence: float, timers: Timers) -> AgentState:
    """Returns the state of an agent that was not heard in this term, `silence` seconds after it could have been:
    never a better one.

    An agent that enrolled and never came is lost as well, so that nothing waits for it.
    """
    found = verdict(silence, timers)
    worse = found is AgentState.LOST or (found is AgentState.SUSPECT and state is AgentState.ALIVE)
    return found if worse else state
