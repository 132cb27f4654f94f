"""Which controller acts on a live attempt, for every combination of its agent, their link and its session. Pure.

No combination is without one: what waits for something that never comes keeps its claims, and its owner's session,
for ever.
"""

from __future__ import annotations

from enum import StrEnum

from retinue.manager.domain.scheduling.records import AgentState
from retinue.manager.domain.session.states import Goal, SessionState


class Link(StrEnum):
    """How an agent can be reached: there is nothing to dial, it refuses, or a stream is open."""

    NONE = "NONE"
    REFUSED = "REFUSED"
    OPEN = "OPEN"


class Controller(StrEnum):
    """Who moves an attempt on."""

    # The agent is sent what is wanted, and reports: `retinue.manager.dispatch.agent_link`.
    LINK = "LINK"
    # The link of a revoked agent is ended, and silence makes an agent AgentState.LOST:
    # `retinue.manager.dispatch.supervisor`.
    LIVENESS = "LIVENESS"
    # The attempt is given up, and its claims are free: `retinue.manager.controllers.deadlines`,
    # by `store.placement.deadlines.read_overdue`.
    STRANDED = "STRANDED"
    # It may still run, and cannot be run again: kept until its agent returns, or its owner terminates the session.
    RETURN = "RETURN"


def controller_of(
    agent_state: str, *, revoked: bool, link: Link, session: SessionState, goal: Goal, may_retry: bool
) -> Controller:
    """Returns who acts next on a live attempt."""
    if link is Link.OPEN:
        return Controller.LIVENESS if revoked else Controller.LINK
    if agent_state != AgentState.LOST:
        return Controller.LIVENESS
    kept = session is SessionState.RUNNING and goal is not Goal.STOPPED and not may_retry and not revoked
    return Controller.RETURN if kept else Controller.STRANDED
