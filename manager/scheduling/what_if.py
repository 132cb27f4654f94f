"""Computes what stands between a waiting session and its start: agents by cause,
and which smaller request would start now.

Every hint changes one thing of the request and is true of what is free at that moment;
whether others go before is not taken into account. A request that fits as it is gets none:
it waits for something else than room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.scheduling.selection import Line, select
from retinue.manager.scheduling.shares import shared_capacity
from retinue.manager.scheduling.strategies import DRF, FAIR_SHARE, FIFO, LIFO, Settings
from retinue.manager.scheduling.view import View
from retinue.rpc.core.amounts import BYTE_SLOTS, DEVICE_SUFFIX, THOUSANDTHS, format_amount

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.manager.scheduling.capacity import CapacityView
    from retinue.manager.scheduling.columns import Agents, Integers, Mask, Owners, Queue
    from retinue.manager.scheduling.equivalence import EquivalenceClass

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a request: the amount of a slot for each kernel, the cluster size, or the mode to multi-node."""

    text: str
    slot: str = ""
    amount: str = ""
    cluster_size: int = 0
    multi_node: bool = False


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Numbers of agents by cause, each agent once at its first, and the changes with which it would start now."""

    agents: tuple[tuple[str, int], ...]
    changes: tuple[Change, ...]

    def without_changes(self) -> WhatIf:
        """Returns the agents alone, for a session that no other request would start."""
        return WhatIf(self.agents, ())

    @property
    def hints(self) -> tuple[str, ...]:
        """Returns the changes in words."""
        return tuple(change.text for change in self.changes)


def what_if(situation: CapacityView, row: int) -> WhatIf:
    """Returns what stands between a waiting session and its start, by its row in the queue."""
    view = View(
        situation.agents, situation.queue, np.array([row], np.int64), situation.settings, situation.round_robin_cursor
    )
    kind = view.kinds[row]
    wanted = np.ones(len(view.free), np.bool_)
    wishes = situation.queue.wishes.get(row)
    if wishes is not None and wishes.strict:
        wanted = np.isin(view.free.rows, np.array(wishes.designated, np.int64))
    return WhatIf(_causes(view, kind, wanted), tuple(_changes(view, kind, wanted)))


def waiting_order(agents: Agents, owners: Owners, queue: Queue, settings: Settings) -> list[int] | None:
    """Returns the rows of the queue in the order in which a pass would look at them,
    if each found room when its turn came.

    None where a strategy of others decides, which is asked in passes only.
    """
    if settings.session_strategy not in {DRF, FAIR_SHARE, FIFO, LIFO}:
        return None
    rows = np.arange(len(queue.owners), dtype=np.int64)
    view = View(agents, queue, rows, settings, "")
    order: list[int] = []

    def attempt(row: int) -> EquivalenceClass:
        order.append(row)
        return view.kinds[row]

    select(
        Line(
            queue=queue,
            owners=owners,
            rows=rows,
            capacity=shared_capacity(agents, view.columns),
            columns=view.columns,
            attempt=attempt,
        ),
        settings,
    )
    return order


def _causes(view: View, kind: EquivalenceClass, wanted: Mask) -> tuple[tuple[str, int], ...]:
    shape = kind.whole if kind.single_node else kind.groups[0][0]
    meeting = view.free.meeting(shape.needs)
    counts = [
        ("not asked for", int((~wanted).sum())),
        ("of another kind", int((wanted & ~meeting).sum())),
        ("takes nothing new", int((wanted & meeting & ~view.free.schedulable).sum())),
    ]
    left = np.flatnonzero(wanted & meeting & view.free.schedulable)
    amounts = view.free.amounts()[:, left]
    lacking = np.zeros((view.lanes.count, len(left)), np.float64)
    for lane, amount in shape.amounts:
        lacking[lane] = (float(amount) - amounts[lane]) / float(amount)
    short = lacking.max(axis=0) > 0 if view.lanes.count else np.zeros(len(left), np.bool_)
    binding = lacking.argmax(axis=0) if view.lanes.count else np.zeros(len(left), np.int64)
    for lane, name in enumerate(_names(view)):
        counts.append((f"short of {name}", int((short & (binding == lane)).sum())))
    counts.append(("with room for a kernel" if len(kind.kernels) > 1 else "with room", int((~short).sum())))
    return tuple((cause, number) for cause, number in counts if number)


def _names(view: View) -> list[str]:
    names = [view.agents.slots[column] for column in view.columns]
    return names + (["kernels"] if view.settings.max_kernels_per_agent else [])


def _changes(view: View, kind: EquivalenceClass, wanted: Mask) -> list[Change]:
    if len(kind.groups) != 1:
        return []
    shape, number = kind.groups[0]
    takers = np.flatnonzero(view.free.takers(shape.needs) & wanted)
    free = view.free.amounts()[:, takers]
    request = np.zeros(view.lanes.count, np.int64)
    for lane, amount in shape.amounts:
        request[lane] = amount

    def fits(asked: Integers, kernels: int, *, single_node: bool) -> bool:
        lanes = np.flatnonzero(asked)
        if not len(takers):
            return False
        held = np.min(free[lanes] // asked[lanes, None], axis=0) if len(lanes) else np.full(len(takers), kernels)
        return bool(held.max() >= kernels if single_node else held.sum() >= kernels)

    if fits(request, number, single_node=kind.single_node):
        return []
    changes = []
    for lane, slot in enumerate(view.agents.slots[column] for column in view.columns):
        if not request[lane]:
            continue

        def smaller(amount: int, lane: int = lane) -> bool:
            asked = request.copy()
            asked[lane] = amount
            return fits(asked, number, single_node=kind.single_node)

        most = _round(slot, _largest(smaller, int(request[lane]) - 1))
        if most:
            each = " for each kernel" if number > 1 else ""
            written = format_amount(slot, most)
            changes.append(Change(f"{slot} of {written} or less{each}", slot=slot, amount=written))
    if number > 1:
        kernels = _largest(lambda count: fits(request, count, single_node=kind.single_node), number - 1)
        if kernels:
            changes.append(Change(f"a cluster size of {kernels} or less", cluster_size=kernels))
        if kind.single_node and fits(request, number, single_node=False):
            changes.append(Change("cluster mode multi-node", multi_node=True))
    return changes


def _largest(true: Callable[[int], bool], most: int) -> int:
    """Returns the largest number up to `most` that something is true of,
    given that it is true of all smaller ones too; 0 for none.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if true(middle) else (low, middle - 1)
    return low


def _round(slot: str, amount: int) -> int:
    """Returns an amount that people would write, not above this one."""
    if slot in BYTE_SLOTS:
        return amount - amount % _MEBIBYTE if amount >= _MEBIBYTE else amount
    return amount - amount % THOUSANDTHS if slot.endswith(DEVICE_SUFFIX) else amount
