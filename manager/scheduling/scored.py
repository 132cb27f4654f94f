"""Choice of agents by an administrator's own strategy in Python: each pick scores the agents that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.scheduling.columns import UNPLACED, Agents, Integers, Mask
from retinue.manager.scheduling.custom import AgentStrategy, FittingAgents, StrategyFailures, checked_scores
from retinue.manager.scheduling.scan import scan_ordered
from retinue.manager.scheduling.strategies import DISPERSED, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.scheduling.equivalence import Shape
    from retinue.manager.scheduling.free import Free


@dataclass(slots=True)
class Scoring:
    """A strategy during one pass; once it has failed it is not asked again."""

    strategy: AgentStrategy
    name: str
    failures: StrategyFailures
    failed: bool = False


class ScoredPicker:
    """Picks the agent with the highest score, the first of equals."""

    def __init__(
        self, free: Free, agents: Agents, columns: Sequence[int], settings: Settings, scoring: Scoring
    ) -> None:
        """Lanes of `free` hold the slots in `columns`."""
        self._free, self._settings, self._scoring = free, settings, scoring
        self._columns = columns
        self._slots = tuple(agents.slots[column] for column in columns)
        self._ids = [agents.ids[row] for row in free.rows.tolist()]
        self._capacity = agents.capacity[free.rows][:, list(columns)]

    def best(self, shape: Shape) -> int:
        """Returns the agent for a shape, or UNPLACED."""
        return self.pick(shape, self._free.takers(shape.needs))

    def pick(self, shape: Shape, mask: Mask) -> int:
        """Returns the agent of `mask` for a shape, or UNPLACED."""
        agents = self._free.fitting(shape, mask)
        if not len(agents):
            return UNPLACED
        scoring = self._scoring
        if not scoring.failed:
            try:
                scores = checked_scores(
                    scoring.strategy.score(self._request(shape), self._fitting(agents)), len(agents)
                )
                return int(agents[np.argmax(scores)])
            except Exception as error:  # noqa: BLE001  # whatever others' code does, the pass continues
                scoring.failed = True
                what = f"agent strategy {scoring.name}"
                scoring.failures.failed(what, f"{type(error).__name__}: {error}", self._settings.agent_fallback)
        most = self._settings.agent_fallback == DISPERSED
        return scan_ordered(self._free, shape, mask, most=most, compared=len(self._columns))

    def checkpoint(self, _shapes: Sequence[Shape]) -> None:
        """Nothing is learned that would have to be undone."""

    def rollback(self, _checkpoint: None) -> None:
        """There is nothing to do."""

    def keep(self) -> None:
        """There is nothing to do."""

    def _request(self, shape: Shape) -> Integers:
        request = np.zeros(len(self._columns), np.int64)
        for lane, amount in shape.amounts:
            if lane < len(request):
                request[lane] = amount
        return request

    def _fitting(self, agents: Integers) -> FittingAgents:
        free = self._free.amounts()[: len(self._columns), agents].T
        return FittingAgents(self._slots, [self._ids[agent] for agent in agents], self._capacity[agents], free)
