"""Decides which agents are not to become lost, because too many of their resource group are silent together: a switch
or a power supply has failed, or the leader is cut off, and agents that would be given up one by one come back together.

A loss that is held stays so until the agent is heard or an administrator confirms it, however many others are back by
then: they come back over minutes. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.domain.scheduling.records import AgentState, LossHold, MassLossRule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retinue.manager.domain.agents.timers import Timers


@dataclass(frozen=True, slots=True)
class Member:
    """An agent of a group: its recorded `state`, for how many seconds it has been silent, and what is recorded of its
    loss. `counts`: neither drained nor revoked, so that its silence is a fault.
    """

    id: str
    group: str
    rule: MassLossRule
    state: AgentState
    silence: float
    hold: LossHold = LossHold.NONE
    counts: bool = True


def held_losses(members: Iterable[Member], timers: Timers) -> dict[str, str]:
    """Returns the agents whose loss is held, with why, in words.

    What is silent counts before it is lost: agents behind one switch are lost one after the other, up to a heartbeat
    apart, and the first is held as well as the last.
    """
    groups = defaultdict[str, list[Member]](list)
    for member in members:
        groups[member.group].append(member)
    held: dict[str, str] = {}
    for name, found in groups.items():
        counted = [member for member in found if _is_counted(member, timers)]
        silent = [member for member in counted if member.silence >= timers.suspect_after]
        rule = found[0].rule
        tripped = len(silent) >= rule.agents and 100 * len(silent) > rule.percent * len(counted)
        why = f"{len(silent)} of the {len(counted)} agents of resource group {name} are silent"
        for member in found:
            if member.state is AgentState.LOST or member.hold is LossHold.CONFIRMED:
                continue
            if member.silence < timers.lost_after and member.hold is LossHold.NONE:
                continue
            if member.hold is LossHold.HELD or (tripped and member in counted):
                held[member.id] = why
    return held


def _is_counted(member: Member, timers: Timers) -> bool:
    if not member.counts or member.state is AgentState.JOINING or member.hold is LossHold.CONFIRMED:
        return False
    return member.state is not AgentState.LOST or member.silence < timers.lost_after + member.rule.window
