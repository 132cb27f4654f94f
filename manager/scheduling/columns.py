"""The input and the output of a scheduling pass, as plain columns.

A caller may keep these columns between passes and change single rows: an agent comes, goes or is drained
(`schedulable`), a claim is released (`used`, `held`), a session is submitted or cancelled. A pass changes none of its
inputs. All amounts are integers in a slot's smallest unit; column j of every amount matrix is the slot
`Agents.slots[j]`. Agents, owners and sessions are named by their rows.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retinue.manager.domain.scheduling.policy import Tier

Integers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Ratios: TypeAlias = NDArray[np.float64]

UNPLACED = -1
UNLIMITED = -1


class Verdict(enum.IntEnum):
    """The verdict of a pass on a session. Only NO_ROOM counts as a try."""

    # Agents were chosen.
    PLACED = 0
    # Tried in vain; whether it could ever fit is for its explanation to say.
    NO_ROOM = 1
    # No agent that it could run on takes sessions now.
    NO_AGENT = 2
    # Held back before the pass by a reason the caller gave.
    HELD_BACK = 3
    # Not evaluated: order is strict, and a session before it found no room.
    BEHIND = 4
    # A quota has no room for it.
    OVER_QUOTA = 5
    # Agents are nominated for it, and not all of their held capacity is free yet.
    NOMINATED = 6


@dataclass(frozen=True, slots=True)
class MissingAmount:
    """One slot of which an agent has too little free."""

    slot: str
    requested: int
    free: int

    @property
    def short(self) -> int:
        """Returns what is lacking."""
        return self.requested - self.free


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The reason why a kernel (its rank in the session), or with `kernel` None all kernels on one agent,
    found no place.

    `agent` comes closest; `lacks` is what is short there, the binding slot (the one with the largest part of the
    request lacking) first.
    """

    kernel: int | None
    agent: str
    lacks: tuple[MissingAmount, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A reason for waiting: an UPPER_SNAKE code, words with amounts, and what is short."""

    tier: Tier
    code: str
    message: str
    shortfalls: tuple[Shortfall, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentPreferences:
    """Rows of agents that one session wants or does not want.

    `designated` agents come first, or are the only ones when `strict`: if none of them is here, it has none. Agents
    `avoided` (the session failed there before) come last, designated or not. A replica of an endpoint (a row
    of `Queue.replicas`) goes where fewest kernels of it are or, with `pack`, most;
    the agent strategy decides between equals.
    """

    designated: Sequence[int] = ()
    strict: bool = False
    avoided: Sequence[int] = ()
    endpoint: int | None = None
    pack: bool = False


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents of one resource group: N rows, S slots. Those that are lost are not among them.

    Agents that take nothing new (drained, suspect) have `schedulable` False;
    their capacity still counts in the owners' shares.
    """

    slots: tuple[str, ...]
    ids: Sequence[str]
    capacity: Integers
    used: Integers
    schedulable: Mask
    architectures: Sequence[str]
    # Live kernels on each agent.
    kernels: Integers
    # What kernels may need besides an architecture, in words, one bit each from the lowest;
    # and the bits that each agent has.
    features: tuple[str, ...] = ()
    offers: Integers | None = None
    # Where not all agents reach each other: the families of addresses by which they do, in words, by their bit of
    # `offers`. The kernels of a session share an agent, or a family.
    families: Mapping[int, str] = field(default_factory=dict)
    # The ids are in order already, each once: the caller answers for it.
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners that have or want something in the group: U rows. Between owners with
    equal shares the first row goes first.
    """

    names: Sequence[str]
    # From 1 to 1,000,000.
    weights: Integers
    # What live claims hold: U x S.
    held: Integers
    # Normalised decayed past usage, from 0, for `fair-share`; None means none.
    past_usage: Ratios | None = None


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits for waiting sessions together with those that are placed: Q rows. UNLIMITED where there is none."""

    # Whose they are, in words.
    names: Sequence[str]
    # Those of `Agents.slots`.
    slots: Sequence[str]
    # Most that may be held, and what is: Q x S.
    limits: Integers
    held: Integers
    # Most sessions that may be placed, and how many are: Q.
    session_limits: Integers
    sessions: Integers
    # For each session of the queue, the rows here that it is held to.
    of_sessions: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Queue:
    """The waiting sessions: N rows in any order, and the requests of their K kernels by rank,
    one session after the other.
    """

    ids: Sequence[str]
    # Row in Owners.
    owners: Integers
    # Higher goes first.
    priorities: Integers
    # Sequence of arrival, unique.
    orders: Integers
    # All kernels must share one agent.
    single_node: Mask
    # Kernels of session i are rows offsets[i]:offsets[i + 1] of `requests`; N + 1 values.
    offsets: Integers
    # K x S; 0 where a kernel asks for none.
    requests: Integers
    # Passes that tried to place it before, for lack of room in vain.
    tries: Integers
    # Sessions not to be tried now, and why: dependency, start time, backoff, quota.
    held_back: Mapping[int, Explanation] = field(default_factory=dict)
    # By kernel: the bits of `Agents.features` that its agent must have; None means none.
    needs: Integers | None = None
    # Sessions that need a certain architecture.
    architectures: Mapping[int, str] = field(default_factory=dict)
    # Sessions that want or avoid certain agents.
    wishes: Mapping[int, AgentPreferences] = field(default_factory=dict)
    # By endpoint: row of an agent, and how many live kernels of the endpoint it has.
    replicas: Sequence[Mapping[int, int]] = ()
    quotas: Quotas | None = None
    # How long each has waited, in seconds, for reservations; None where it is not needed.
    waited: Integers | None = None
    # Time limits that sessions declare, in seconds.
    limits: Mapping[int, float] = field(default_factory=dict)
    # Capacity held for sessions, as by preemption: the row of the nominated agent of each kernel, by rank.
    nominated: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """The placed sessions of a group, R rows, and what they hold: H rows, one for each kernel,
    one session after the other.

    Their amounts are part of `Agents.used`. Only those that end by a time limit or by themselves, or may be preempted,
    need be here.
    """

    ids: Sequence[str]
    priorities: Integers
    # May make way for a session of higher priority.
    preemptible: Mask
    # When they were placed, in any unit: larger is newer.
    placed: Integers
    # Seconds until their time limit ends; infinite without one.
    ends: Ratios
    # What session i holds are rows offsets[i]:offsets[i + 1] of `amounts`; R + 1 values.
    offsets: Integers
    # H: row of the agent.
    agents: Integers
    # H x S.
    amounts: Integers
    # Will end by themselves although no time limit says when, as what only computes does; None: no session will.
    finishing: Mask | None = None
