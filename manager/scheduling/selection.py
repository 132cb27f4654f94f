"""Selects the session that comes next: strict arrival order, newest first, or progressive filling by dominant shares.

Every strategy works inside priority bands, higher ones first. `fifo` is strict: the first session that finds no room
holds up all behind it, in lower bands too, unless it was tried `max-tries-before-skip` times; then it goes to the end
of its band and holds up none. One that exceeds a quota holds up none either.
`lifo` and `drf` pass over a session that finds no room. In `drf` the owner with the lowest dominant share (see
`shares`) gets its first session not yet passed over placed, and its share grows at once; between equal shares the first
row of the owners goes first, and an owner's sessions go in order of arrival.
A heap of owners makes a decision O(log owners).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import pairwise

import numpy as np

from retinue.manager.scheduling.columns import Integers, Owners, Queue
from retinue.manager.scheduling.equivalence import EquivalenceClass
from retinue.manager.scheduling.fair_share import effective_weights
from retinue.manager.scheduling.shares import ShareKeys
from retinue.manager.scheduling.strategies import DRF, FAIR_SHARE, FIFO, LIFO, Settings


@dataclass(frozen=True, slots=True)
class Line:
    """The sessions that a pass may place, and how it tries one."""

    queue: Queue
    owners: Owners
    # Rows in the queue.
    rows: Integers
    # What exists of each lane; 0 of one that does not count in shares.
    capacity: Sequence[int]
    # Column of each lane.
    columns: Sequence[int]
    # Places the session in a row of the queue; its kind if it found room.
    attempt: Callable[[int], EquivalenceClass | None]
    # Rows that `attempt` found to exceed a quota.
    over_quota: Container[int] = ()
    # A session before these has a reservation: none of them holds up others.
    backfill: bool = False
    # For strategies of others: rows in the order that they gave.
    given: Sequence[int] | None = None


def select(line: Line, settings: Settings) -> tuple[int | None, list[int]]:
    """Tries the sessions of a line in the order of the settings' strategy.

    Returns the row of the session that holds up others, if any, and the rows that were not evaluated because of it.
    """
    if line.given is not None:
        return _given(line, line.given)
    return _STRATEGIES[settings.session_strategy](line, settings)


def _given(line: Line, order: Sequence[int]) -> tuple[int | None, list[int]]:
    rows = np.array(order, np.int64)
    for row in rows[np.argsort(-line.queue.priorities[rows], kind="stable")].tolist():
        line.attempt(row)
    return None, []


def _fifo(line: Line, settings: Settings) -> tuple[int | None, list[int]]:
    queue, rows = line.queue, line.rows
    threshold = settings.max_tries_before_skip
    pushed_back = queue.tries[rows] >= threshold if threshold else np.zeros(len(rows), np.bool_)
    order = np.lexsort((queue.orders[rows], pushed_back, -queue.priorities[rows]))
    strict = (~pushed_back[order] & (not line.backfill)).tolist()
    attempt = line.attempt
    in_order = rows[order].tolist()
    for position, row in enumerate(in_order):
        if attempt(row) is None and strict[position] and row not in line.over_quota:
            return row, in_order[position + 1 :]
    return None, []


def _lifo(line: Line, _settings: Settings) -> tuple[int | None, list[int]]:
    queue, rows = line.queue, line.rows
    for row in rows[np.lexsort((-queue.orders[rows], -queue.priorities[rows]))].tolist():
        line.attempt(row)
    return None, []


def _drf(line: Line, _settings: Settings) -> tuple[int | None, list[int]]:
    _fill(line, line.owners.weights.tolist())
    return None, []


def _fair_share(line: Line, _settings: Settings) -> tuple[int | None, list[int]]:
    weights, past_usage = line.owners.weights.tolist(), line.owners.past_usage
    _fill(line, weights if past_usage is None else effective_weights(weights, past_usage.tolist()))
    return None, []


_STRATEGIES: dict[str, Callable[[Line, Settings], tuple[int | None, list[int]]]] = {
    FIFO: _fifo,
    LIFO: _lifo,
    DRF: _drf,
    FAIR_SHARE: _fair_share,
}


class _Ledger:
    """The owners' shares while a pass advances them."""

    def __init__(self, line: Line, weights: list[int]) -> None:
        self._keys = ShareKeys(line.capacity, weights)
        self._weights = weights
        factors = self._keys.factors
        self._scaled = [
            [amount * factor for amount, factor in zip(held, factors, strict=True)]
            for held in line.owners.held[:, line.columns].tolist()
        ]
        self._largest = [max(scaled, default=0) for scaled in self._scaled]
        self._demands: dict[int, list[tuple[int, int]]] = {}

    def key(self, owner: int) -> int:
        return self._keys.key(self._largest[owner], self._weights[owner])

    def advance(self, owner: int, kind: EquivalenceClass) -> None:
        demand = self._demands.get(id(kind))
        if demand is None:
            factors = self._keys.factors
            demand = [
                (lane, kind.total[lane] * factor) for lane, factor in enumerate(factors) if factor and kind.total[lane]
            ]
            self._demands[id(kind)] = demand
        scaled, largest = self._scaled[owner], self._largest[owner]
        for lane, amount in demand:
            scaled[lane] = held = scaled[lane] + amount
            if held > largest:  # noqa: PLR1730  # max() would be most of what a decision costs here
                largest = held
        self._largest[owner] = largest


def _fill(line: Line, weights: list[int]) -> None:
    """Progressive filling, band by band. A heap entry is an owner's share with its row below it,
    so equal shares go by row.
    """
    queue, rows, attempt = line.queue, line.rows, line.attempt
    if not len(rows):
        return
    ledger = _Ledger(line, weights)
    owners, priorities = queue.owners[rows], queue.priorities[rows]
    order = np.lexsort((queue.orders[rows], owners, -priorities))
    in_order = rows[order].tolist()
    owners, priorities = owners[order], priorities[order]
    # Where a run of one owner in one band begins.
    begins = np.flatnonzero(np.r_[True, (owners[1:] != owners[:-1]) | (priorities[1:] != priorities[:-1])])
    ends = np.r_[begins[1:], len(owners)].tolist()
    bands = [*np.flatnonzero(np.r_[True, priorities[begins][1:] != priorities[begins][:-1]]).tolist(), len(begins)]
    starts, run_owners = begins.tolist(), owners[begins].tolist()
    owner_bits = len(weights).bit_length()
    owner_mask = (1 << owner_bits) - 1

    for first, last in pairwise(bands):
        cursor = dict(zip(run_owners[first:last], starts[first:last], strict=True))
        end = dict(zip(run_owners[first:last], ends[first:last], strict=True))
        heap = [ledger.key(owner) << owner_bits | owner for owner in run_owners[first:last]]
        heapify(heap)
        while heap:
            owner = heap[0] & owner_mask
            position, stop = cursor[owner], end[owner]
            while position < stop:
                row = in_order[position]
                position += 1
                placed = attempt(row)
                if placed is not None:
                    ledger.advance(owner, placed)
                    break
            else:
                heappop(heap)
                continue
            cursor[owner] = position
            heapreplace(heap, ledger.key(owner) << owner_bits | owner)
