"""Computes why a session found no place, on request, once for each kind.

First what waiting cannot cure (no agent of the architecture or with the features, more than the largest agent or the
whole group has), then that no agent takes sessions now, then what is short at the end of the pass: for each kernel the
agent that comes closest, the binding slot and the lack. Closest is the agent on which the largest part of a request
that is lacking is smallest; the first id wins a tie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.scheduling.policy import Tier
from retinue.manager.scheduling.columns import AgentPreferences, Explanation, Integers, Mask, MissingAmount, Shortfall
from retinue.manager.scheduling.equivalence import KERNEL, EquivalenceClass, Needs, Shape
from retinue.manager.scheduling.free import count_room
from retinue.rpc.core.amounts import format_amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from retinue.manager.scheduling.view import View

ARCHITECTURE_MISSING = SessionReason.ARCHITECTURE_MISSING
FEATURE_MISSING = SessionReason.FEATURE_MISSING
EXCEEDS_LARGEST_AGENT = SessionReason.EXCEEDS_LARGEST_AGENT
EXCEEDS_CHOSEN_AGENTS = SessionReason.EXCEEDS_CHOSEN_AGENTS
EXCEEDS_GROUP = SessionReason.EXCEEDS_GROUP
BEHIND_HEAD = SessionReason.BEHIND_HEAD
INSUFFICIENT_CAPACITY = SessionReason.INSUFFICIENT_CAPACITY
STRATEGY_DECLINED = SessionReason.STRATEGY_DECLINED
RESERVED = SessionReason.RESERVED
PREEMPTING = SessionReason.PREEMPTING
NO_AGENT_AVAILABLE = SessionReason.NO_AGENT_AVAILABLE
# Name of the lane that counts kernels.
KERNELS = "kernels"
# A gang of a thousand equal kernels needs no thousand equal lines.
MAX_SHORTFALLS = 16
MAX_NAMED = 4
_ONCE_ENDED = "once what runs there has ended, of which no time limits say when"


def behind(head: str) -> Explanation:
    """Returns the reason of sessions that a strict order keeps behind session `head`."""
    return Explanation(Tier.POLICY, BEHIND_HEAD, f"waits in strict order behind session {head}, which finds no room")


def behind_reservation(head: str, agents: Sequence[str], after: float) -> Explanation:
    """Returns the reason of sessions that there is room for, but not beside what is reserved for session `head`."""
    message = f"would delay session {head}, which has a reservation on {_named(agents)} "
    if math.isfinite(after):
        message += f"in {after:.0f} s; a time limit that ends before then would let it start"
    else:
        message += _ONCE_ENDED
    return Explanation(Tier.POLICY, RESERVED, message)


def has_reservation(why: Explanation, agents: Sequence[str], after: float) -> Explanation:
    """Returns the reason of the session that a reservation is for, with it."""
    when = f"in {after:.0f} s at the latest" if math.isfinite(after) else _ONCE_ENDED
    return replace(why, message=f"{why.message}; has a reservation on {_named(agents)} {when}")


def preempting(agents: Sequence[str]) -> Explanation:
    """Returns the reason of a session that others make way for."""
    return Explanation(
        Tier.CAPACITY, PREEMPTING, f"sessions of lower priority make way for it on {_named(sorted(set(agents)))}"
    )


def _named(agents: Sequence[str]) -> str:
    named = ", ".join(agents[:MAX_NAMED])
    return f"agents {named} and {len(agents) - MAX_NAMED} more" if len(agents) > MAX_NAMED else f"agent {named}"


class Explainer:
    """Explains the kinds of one pass, by what was free at its end."""

    def __init__(self, view: View) -> None:
        """Lanes of the view hold its columns, and one more the kernels when their number is limited."""
        agents, free, columns, max_kernels = view.agents, view.free, view.columns, view.settings.max_kernels_per_agent
        self._agents, self._free, self._placer = agents, free, view.placer
        self._slots = [agents.slots[column] for column in columns] + ([KERNELS] if max_kernels else [])
        capacity = np.zeros((free.lanes.count, len(free)), np.int64)
        for lane, column in enumerate(columns):
            capacity[lane] = agents.capacity[free.rows, column]
        if max_kernels:
            capacity[-1] = max_kernels * KERNEL
        self._capacity = capacity
        self._known: dict[int, Explanation] = {}

    def explain(self, kind: EquivalenceClass, wishes: AgentPreferences | None) -> Explanation:
        """Returns why sessions of a kind wait; those with wishes have a kind of their own."""
        known = self._known.get(id(kind))
        if known is None:
            known = self._known[id(kind)] = self._explain(kind, wishes)
        return known

    def _explain(self, kind: EquivalenceClass, wishes: AgentPreferences | None) -> Explanation:
        existing = everything = np.ones(len(self._free), np.bool_)
        shapes = [kind.whole] if kind.single_node else [shape for shape, _ in kind.groups]
        if len(existing):
            for shape in shapes:
                if not self._free.meeting(shape.needs).any():
                    return self._missing(shape.needs)
        if wishes is not None and wishes.strict:
            existing = np.isin(self._free.rows, list(wishes.designated))
        takers = existing & self._free.schedulable
        # A choice of agents that is too small is said of only where others would do.
        for mask in (everything,) if existing is everything else (everything, existing):
            if all((mask & self._free.meeting(shape.needs)).any() for shape in shapes):
                never = self._never(kind, mask, chosen=mask is not everything)
                if never is not None:
                    return never
        if not all((existing & self._free.takers(shape.needs)).any() for shape in shapes):
            return Explanation(Tier.SYSTEM, NO_AGENT_AVAILABLE, "no agent that it may run on takes sessions now")
        return self._within_families(kind, existing, takers) if kind.families else self._short(kind, takers)

    def _within_families(self, kind: EquivalenceClass, existing: Mask, takers: Mask) -> Explanation:
        """Explains a session that is spread over agents that do not all reach each other."""
        possible = {
            words: family
            for words, family in zip(self._agents.families.values(), kind.families, strict=True)
            if self._meet(family, existing) and self._never(family, existing, chosen=False) is None
        }
        if not possible:
            chosen = bool((~existing).any())
            who = "chosen agents" if chosen else "agents"
            listed = " nor ".join(f"{who} with {words} underlay addresses" for words in self._agents.families.values())
            return Explanation(
                Tier.CONFIGURATION,
                EXCEEDS_CHOSEN_AGENTS if chosen else EXCEEDS_GROUP,
                f"neither {listed}, empty, would hold it; no packets pass between these",
            )
        open_now = {words: family for words, family in possible.items() if self._meet(family, takers)}
        if not open_now:
            return Explanation(
                Tier.SYSTEM, NO_AGENT_AVAILABLE, "no agents that it may run on together take sessions now"
            )
        words = max(open_now, key=lambda words: self._placer.probe(open_now[words])[0])
        why = self._short(open_now[words], takers)
        where = f"agents with {words} underlay addresses, as no packets pass between these and others"
        return replace(why, message=f"{why.message}; of {where}")

    def _meet(self, kind: EquivalenceClass, mask: Mask) -> bool:
        return all((mask & self._free.meeting(shape.needs)).any() for shape, _ in kind.groups)

    def _missing(self, needs: Needs) -> Explanation:
        if not self._free.meeting(Needs(needs.architecture)).any():
            return Explanation(
                Tier.CONFIGURATION, ARCHITECTURE_MISSING, f"no agent has architecture {needs.architecture}"
            )
        features = [name for bit, name in enumerate(self._agents.features) if needs.features >> bit & 1]
        of = f" of architecture {needs.architecture}" if needs.architecture else ""
        return Explanation(Tier.CONFIGURATION, FEATURE_MISSING, f"no agent{of} has {' and '.join(features)}")

    def _never(self, kind: EquivalenceClass, existing: Mask, *, chosen: bool) -> Explanation | None:
        """Returns why these agents would not do if nothing else were on them;
        `chosen` says whether they are a strict choice among others.
        """
        if kind.single_node:
            shortfalls = self._shortfalls(
                [kind.whole], [0 if len(kind.kernels) == 1 else None], self._capacity, existing
            )
        else:
            shortfalls = self._shortfalls(kind.kernels, range(len(kind.kernels)), self._capacity, existing)
        if shortfalls:
            return Explanation(
                Tier.CONFIGURATION,
                EXCEEDS_CHOSEN_AGENTS if chosen else EXCEEDS_LARGEST_AGENT,
                self._words(kind, shortfalls, "the largest of those chosen" if chosen else "the largest"),
                shortfalls,
            )
        if kind.single_node:
            return None
        for shape, number in kind.groups:
            room = count_room(self._capacity, shape, existing & self._free.meeting(shape.needs))
            if room < number:
                asked = _phrase((self._slots[lane], amount) for lane, amount in shape.amounts)
                return Explanation(
                    Tier.CONFIGURATION,
                    EXCEEDS_CHOSEN_AGENTS if chosen else EXCEEDS_GROUP,
                    f"needs {asked} for each of {number} kernels; the {'chosen ' if chosen else ''}nodes, empty, would hold"
                    f" {room} of them",
                )
        return None

    def _short(self, kind: EquivalenceClass, takers: Mask) -> Explanation:
        amounts = self._free.amounts()
        if kind.single_node:
            shortfalls = self._shortfalls([kind.whole], [0 if len(kind.kernels) == 1 else None], amounts, takers)
        else:
            shortfalls = self._shortfalls(kind.kernels, range(len(kind.kernels)), amounts, takers)
        if shortfalls:
            words = self._words(kind, shortfalls, "the freest")
            return Explanation(Tier.CAPACITY, INSUFFICIENT_CAPACITY, words, shortfalls)
        placed, missing, left = self._placer.probe(kind)
        if missing is None:
            return Explanation(Tier.CAPACITY, INSUFFICIENT_CAPACITY, "not enough was free when its turn came")
        shortfalls = self._shortfalls([missing], [placed], left, takers)
        words = self._words(kind, shortfalls, "the freest")
        message = f"{placed} of {len(kind.kernels)} kernels find room together; {words}"
        return Explanation(Tier.CAPACITY, INSUFFICIENT_CAPACITY, message, shortfalls)

    def _shortfalls(
        self, shapes: Sequence[Shape], kernels: Sequence[int | None], amounts: Integers, mask: Mask
    ) -> tuple[Shortfall, ...]:
        found: list[Shortfall] = []
        known: dict[int, tuple[str, tuple[MissingAmount, ...]]] = {}
        for shape, kernel in zip(shapes, kernels, strict=True):
            if id(shape) not in known:
                known[id(shape)] = self._closest(shape, amounts, mask & self._free.meeting(shape.needs))
            agent, lacks = known[id(shape)]
            if lacks:
                found.append(Shortfall(kernel, agent, lacks))
                if len(found) == MAX_SHORTFALLS:
                    break
        return tuple(found)

    def _closest(self, shape: Shape, amounts: Integers, mask: Mask) -> tuple[str, tuple[MissingAmount, ...]]:
        agents = np.flatnonzero(mask)
        worst = np.zeros(len(agents), np.float64)
        for lane, amount in shape.amounts:
            np.maximum(worst, (float(amount) - amounts[lane, agents]) / float(amount), out=worst)
        agent = int(agents[np.argmin(worst)])
        lacks = [
            MissingAmount(self._slots[lane], amount, int(amounts[lane, agent]))
            for lane, amount in shape.amounts
            if amounts[lane, agent] < amount
        ]
        lacks.sort(key=lambda lack: -lack.short / lack.requested)
        return self._agents.ids[int(self._free.rows[agent])], tuple(lacks)

    def _words(self, kind: EquivalenceClass, shortfalls: Sequence[Shortfall], closest: str) -> str:
        """Returns what the first kernel that finds no room lacks; `closest` says in what sense its agent has most."""
        shortfall = shortfalls[0]
        lacks = shortfall.lacks[:MAX_NAMED]
        requested = _phrase((lack.slot, lack.requested) for lack in lacks)
        # A single amount needs no second name.
        free = (
            _phrase((lack.slot, lack.free) for lack in lacks)
            if len(lacks) > 1
            else _amount(lacks[0].slot, lacks[0].free)
        )
        subject, whom = "", ""
        if shortfall.kernel is None:
            whom = f" for its {len(kind.kernels)} kernels together"
        elif len(kind.kernels) > 1:
            subject = "its main kernel " if shortfall.kernel == 0 else f"its kernel of rank {shortfall.kernel} "
        more = f", and {len(shortfalls) - 1} more of its kernels lack room" if len(shortfalls) > 1 else ""
        return f"{subject}needs {requested} on one node{whom}; {closest} has {free} ({shortfall.agent}){more}"


def _phrase(amounts: Iterable[tuple[str, int]]) -> str:
    """Returns amounts as people say them: `4 cpu and 8g mem`."""
    *said, last = [_amount(slot, amount) + ("" if slot == KERNELS else f" {slot}") for slot, amount in amounts]
    return f"{', '.join(said)} and {last}" if said else last


def _amount(slot: str, amount: int) -> str:
    text = format_amount(slot, amount)
    # What an agent takes at most, whatever kernels ask for.
    return f"room for {text} kernel{'' if text == '1' else 's'}" if slot == KERNELS else text
