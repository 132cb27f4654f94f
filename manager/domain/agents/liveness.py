"""Decides from an agent's silence whether it is lost. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.scheduling.records import AgentState

if TYPE_CHECKING:
    from retinue.manager.domain.agents.timers import Timers


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
