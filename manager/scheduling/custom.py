"""Administrators' own strategies: what they get, what they answer, and what becomes of answers that make no sense.

A Python strategy is a class, installed as an entry point of the group `retinue.session_strategies` or
`retinue.agent_strategies`; a resource group names it by the entry point's name. It has `options`, the names of the
group's options that it reads, and is made with their values; a ValueError refuses them. It must not change the arrays
that it gets. An external strategy is asked before the pass, and its answers come as `Advice`.
Whatever fails, the pass continues with the group's fallback and remembers why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Protocol

import numpy as np

from retinue.manager.scheduling.columns import Integers, Ratios

SESSION_ENTRY_POINTS, AGENT_ENTRY_POINTS = "retinue.session_strategies", "retinue.agent_strategies"
MAX_FAILURE = 200


@dataclass(frozen=True, slots=True)
class WaitingSessions:
    """Sessions that may be tried, N rows in order of arrival, as a session strategy sees them. Amounts are integers:
    bytes for `mem` and `disk`, thousandths for every other slot; column j is the slot `slots[j]`.
    """

    slots: tuple[str, ...]
    ids: Sequence[str]
    # Row in the owners' columns: U rows.
    owners: Integers
    priorities: Integers
    tries: Integers
    # Seconds.
    waited: Integers
    # What all kernels of each ask for together, N x S, and how many kernels those are.
    requests: Integers
    kernels: Integers
    owner_names: Sequence[str]
    owner_weights: Integers
    # What each owner holds, U x S, and what the group's agents have together, S.
    owner_held: Integers
    capacity: Integers


@dataclass(frozen=True, slots=True)
class FittingAgents:
    """Agents that fit a request, N rows in order of their ids, as an agent strategy sees them."""

    slots: tuple[str, ...]
    ids: Sequence[str]
    # N x S.
    capacity: Integers
    free: Integers


class SessionStrategy(Protocol):
    """Decides in which order sessions are tried."""

    options: ClassVar[Collection[str]]

    def order(self, waiting: WaitingSessions) -> Sequence[int]:
        """Returns every row once, the first one first. Priority comes first whatever the order."""


class AgentStrategy(Protocol):
    """Decides between the agents that fit."""

    options: ClassVar[Collection[str]]

    def score(self, request: Integers, agents: FittingAgents) -> Sequence[float] | Ratios:
        """Returns a number for each agent; the highest is chosen, the first of equals. `request` is S amounts."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer of an external strategy, or why there is none: ids of sessions in order,
    and the agents of sessions' kernels.
    """

    order: Sequence[str] | None = None
    placements: Mapping[str, Sequence[str]] | None = None
    order_failure: str = ""
    placements_failure: str = ""


@dataclass(slots=True)
class StrategyFailures:
    """The failures of strategies in a pass, in words, each once."""

    messages: list[str] = field(default_factory=list)

    def failed(self, what: str, why: str, fallback: str) -> None:
        """Notes that a strategy failed and `fallback` takes its place."""
        text = f"{what} failed ({why[:MAX_FAILURE]}), {fallback} decided instead"
        if text not in self.messages:
            self.messages.append(text)


def checked_order(order: Sequence[Any], number: int) -> list[int]:
    """Returns an order of so many rows as integers. Raises ValueError unless each is there once."""
    rows = [int(row) for row in order]
    if len(rows) != number or set(rows) != set(range(number)):
        raise ValueError(f"answered {len(rows)} rows for {number} sessions, or not each of them once")
    return rows


def checked_scores(scores: Sequence[float] | Ratios, number: int) -> Ratios:
    """Scores of so many agents. Raises ValueError unless there is a number for each."""
    numbers = np.asarray(scores, np.float64)
    if numbers.shape != (number,) or np.isnan(numbers).any():
        raise ValueError(f"answered scores of shape {numbers.shape} for {number} agents, or no numbers")
    return numbers


@cache
def installed(group: str) -> Mapping[str, EntryPoint]:
    """Returns the strategies that are installed, by name; of two with one name, the first."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, point)
    return found


def load(group: str, name: str) -> Any:
    """Returns the class of an installed strategy. Raises ValueError when it cannot be loaded."""
    try:
        made = installed(group)[name].load()
        frozenset(made.options)
    except Exception as error:
        raise ValueError(f"strategy {name} is installed but cannot be used: {error!r}"[:MAX_FAILURE]) from error
    return made
