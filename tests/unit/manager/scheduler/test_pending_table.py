"""The sessions that wait, in columns: what is kept of each after many came and went."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from retinue.manager.domain.session.runtime_features import needed
from retinue.manager.scheduler.core.growable import Slots
from retinue.manager.scheduler.core.pending_table import PendingTable
from tests.unit.manager.scheduler.waiting_sessions import waiting


def cores(table: PendingTable, slots: Slots) -> dict[str, list[int]]:
    """What each session asks for, kernel by kernel; its priority stands for it."""
    rows = table.rows_of("g")
    kernels, offsets = table.kernels_of(rows)
    column = slots.column("cpu")
    return {
        str(table.priority[row]): table.requests[kernels[offsets[place] : offsets[place + 1]], column].tolist()
        for place, row in enumerate(rows.tolist())
    }


def test_packing_keeps_every_session_and_its_kernels() -> None:
    slots = Slots()
    table = PendingTable(slots, needed)
    wanted: dict[str, list[int]] = {}
    ids = []
    for number in range(3000):
        # Ten shapes, of one kernel to three; the first ones all go.
        shape, size = number * 10 // 3000, 1 + number % 3
        kernels = [
            {"hostname": f"k{rank}", "image": False, "isolation": "PROCESS", "slots": {"cpu": 1000 * shape + rank + 1}}
            for rank in range(size)
        ]
        row = replace(
            waiting("ann"),
            priority=number,
            sequence=number,
            cluster_size=len(kernels),
            kernels=json.dumps(kernels),
            failed_agents=["n1"] if number % 500 == 7 else [],
        )
        table.put(row, 0)
        ids.append(row.id)
        wanted[str(number)] = [1000 * shape + rank + 1 for rank in range(size)]
    for number in range(2400):
        assert table.remove(ids[number]) == "g"
        del wanted[str(number)]
    assert table.packed > 0
    assert table.count < 1600
    assert cores(table, slots) == wanted
    assert {int(table.priority[row]) for row in table.constrained} == {2507}
    # A session of a shape that was kept, and one of a shape that was forgotten.
    for number, shape in ((3000, 9), (3001, 0)):
        kernels = [{"hostname": "k0", "image": False, "isolation": "PROCESS", "slots": {"cpu": 1000 * shape + 1}}]
        table.put(
            replace(
                waiting("ann"),
                priority=number,
                sequence=number,
                cluster_size=len(kernels),
                kernels=json.dumps(kernels),
            ),
            0,
        )
        wanted[str(number)] = [1000 * shape + 1]
    assert cores(table, slots) == wanted
    assert np.array_equal(table.sequence[table.rows_of("g")], np.sort(table.sequence[table.rows_of("g")]))


def test_reasons_that_no_session_has_are_pruned() -> None:
    table = PendingTable(Slots(), needed)
    kept = replace(waiting("ann"), reason="QUOTA", message="kept")
    table.put(kept, 0)
    for number in range(3000):
        row = replace(waiting("ann"), id=kept.id, reason="QUOTA", message=f"{number}")
        table.put(row, 0)
    table.put(kept, 0)
    table.prune_reasons()
    assert len(table.reasons) == 1
    (row,) = table.rows_of("g").tolist()
    reason = table.reasons[table.reason[row]]
    assert reason is not None
    assert reason.message == "kept"
    # It is the same reason still when it is found once more.
    assert table.reason_number("QUOTA", "kept", int(table.hostnames[row])) == table.reason[row]
