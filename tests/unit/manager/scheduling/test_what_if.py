"""Hints of what would start now, and agents by cause."""

from __future__ import annotations

import numpy as np

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.scheduling.capacity import CapacityView
from retinue.manager.scheduling.columns import Running
from retinue.manager.scheduling.strategies import validate_policy
from retinue.manager.scheduling.view import View
from retinue.manager.scheduling.what_if import Change, WhatIf, what_if
from tests.vectors.scene import Scene

NONE_RUNNING = Running(
    ids=[],
    priorities=np.zeros(0, np.int64),
    preemptible=np.zeros(0, np.bool_),
    placed=np.zeros(0, np.int64),
    ends=np.zeros(0, np.float64),
    offsets=np.zeros(1, np.int64),
    agents=np.zeros(0, np.int64),
    amounts=np.zeros((0, 0), np.int64),
)


def look(scene: Scene) -> WhatIf:
    agents, _, queue, _ = scene.columns()
    settings = validate_policy(Policy("drf", "concentrated"))
    placer = View(agents, queue, np.zeros(0, np.int64), settings, "").placer
    return what_if(CapacityView(agents, queue, settings, "", NONE_RUNNING, placer), 0)


def scene() -> Scene:
    made = Scene()
    made.add_agent("a", {"cpu": 4000, "mem": 8 << 30}, {"cpu": 1000})
    made.add_agent("b", {"cpu": 4000, "mem": 8 << 30}, {"mem": 6 << 30})
    made.add_agent("c", {"cpu": 8000, "mem": 8 << 30}, schedulable=False)
    made.add_agent("d", {"cpu": 8000, "mem": 8 << 30}, architecture="aarch64")
    return made


def test_one_kernel() -> None:
    made = scene()
    made.add_session("s", "A", [{"cpu": 4000, "mem": 5 << 30}], architecture="x86_64")
    assert look(made) == WhatIf(
        (("of another kind", 1), ("takes nothing new", 1), ("short of cpu", 1), ("short of mem", 1)),
        (
            Change("cpu of 3 or less", slot="cpu", amount="3"),
            Change("mem of 2g or less", slot="mem", amount="2g"),
        ),
    )


def test_a_gang_may_be_smaller_or_spread() -> None:
    made = scene()
    made.add_session("s", "A", [{"cpu": 2000, "mem": 1 << 30}] * 3, single_node=True, architecture="x86_64")
    assert look(made).changes == (
        Change("cpu of 1 or less for each kernel", slot="cpu", amount="1"),
        Change("a cluster size of 2 or less", cluster_size=2),
        Change("cluster mode multi-node", multi_node=True),
    )


def test_a_request_that_fits_as_it_is_has_no_smaller_one() -> None:
    made = scene()
    made.add_session("s", "A", [{"cpu": 2000, "mem": 1 << 30}] * 2, single_node=True, architecture="x86_64")
    found = look(made)
    assert ("with room for a kernel", 1) in found.agents
    assert found.changes == ()


def test_chosen_agents_alone_count() -> None:
    made = scene()
    made.add_session("s", "A", [{"cpu": 5000, "mem": 1}], designated=["b"], strict=True)
    assert look(made) == WhatIf(
        (("not asked for", 3), ("short of cpu", 1)), (Change("cpu of 4 or less", slot="cpu", amount="4"),)
    )
