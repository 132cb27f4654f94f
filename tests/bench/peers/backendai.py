"""Backend.AI's own DRF scheduler and dispersed choice of agents on an instance from a file;
run by the Python of its own environment.

Rows are plain objects with the attributes that it reads: less work for it than its mapped classes.
Prints picks and seconds.
"""

from __future__ import annotations

import json
import sys
import time
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from ai.backend.common.types import (  # type: ignore[import-not-found,unused-ignore]
    AgentSelectionStrategy,
    ResourceSlot,
)
from ai.backend.manager.models.scaling_group import (  # type: ignore[import-not-found,unused-ignore]
    ScalingGroupOpts,
)
from ai.backend.manager.scheduler.drf import DRFScheduler  # type: ignore[import-not-found,unused-ignore]


def slots(names: list[str], amounts: list[int]) -> Any:
    """Its kind of amounts."""
    return ResourceSlot({name: Decimal(amount) for name, amount in zip(names, amounts, strict=True)})


def main(path: str, most_picks: int, most_seconds: float) -> None:
    """Schedules until one of the limits."""
    with open(path, encoding="utf-8") as file:
        given = json.load(file)
    names = given["slots"]
    agents = [
        SimpleNamespace(
            id=agent["id"], available_slots=slots(names, agent["capacity"]), occupied_slots=slots(names, agent["used"])
        )
        for agent in given["agents"]
    ]
    by_id = {agent.id: agent for agent in agents}
    pending = [
        SimpleNamespace(id=number, access_key=session["owner"], requested_slots=slots(names, session["request"]))
        for number, session in enumerate(given["pending"])
    ]
    existing = [
        SimpleNamespace(id=-1 - number, access_key=session["owner"], occupying_slots=slots(names, session["request"]))
        for number, session in enumerate(given["running"])
    ]
    total = ResourceSlot(
        {name: Decimal(sum(agent["capacity"][at] for agent in given["agents"])) for at, name in enumerate(names)}
    )
    scheduler = DRFScheduler(ScalingGroupOpts(), {})
    picks = 0
    begin = time.perf_counter()
    while pending and picks < most_picks and time.perf_counter() - begin < most_seconds:
        picked = scheduler.pick_session(total, pending, existing)
        if picked is None:
            break
        at = next(number for number, session in enumerate(pending) if session.id == picked)
        session = pending.pop(at)
        agent_id = scheduler.assign_agent_for_session(
            agents, session, AgentSelectionStrategy.DISPERSED, ["cuda", "rocm", "tpu", "cpu", "mem"]
        )
        if agent_id is not None:
            agent = by_id[agent_id]
            agent.occupied_slots = agent.occupied_slots + session.requested_slots
        picks += 1
    sys.stdout.write(json.dumps({"picks": picks, "seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
