"""The order in which a pass would look at all that waits, if each found room when its turn came."""

from __future__ import annotations

import numpy as np

from retinue.manager.scheduling.columns import Agents, Owners, Queue
from retinue.manager.scheduling.kinds import Kind
from retinue.manager.scheduling.selection import Line, select
from retinue.manager.scheduling.shares import total_capacity
from retinue.manager.scheduling.strategies import DRF, FAIR_SHARE, FIFO, LIFO, Settings
from retinue.manager.scheduling.view import View


def waiting_order(agents: Agents, owners: Owners, queue: Queue, settings: Settings) -> list[int] | None:
    """Returns the rows of the queue in that order; None where a strategy of others decides, which is asked in passes only."""
    if settings.session_strategy not in {DRF, FAIR_SHARE, FIFO, LIFO}:
        return None
    rows = np.arange(len(queue.owners), dtype=np.int64)
    view = View(agents, queue, rows, settings, "")
    order: list[int] = []

    def attempt(row: int) -> Kind:
        order.append(row)
        return view.kinds[row]

    total = total_capacity(agents.capacity)
    select(
        Line(
            queue=queue,
            owners=owners,
            rows=rows,
            capacity=[total[column] for column in view.columns],
            columns=view.columns,
            attempt=attempt,
        ),
        settings,
    )
    return order
