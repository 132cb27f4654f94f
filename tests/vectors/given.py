"""What vectors say of agents and policies, as scenes of the scheduler."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.scheduling.strategies import (
    DISPERSED,
    MAX_KERNELS_PER_AGENT,
    ROUND_ROBIN,
    SLOT_PRIORITY,
)
from tests.vectors.scene import Scene, exact

Vector = dict[str, Any]


# Ours, by the names that the vectors have for them.
STRATEGIES = {"legacy": DISPERSED, "roundrobin": ROUND_ROBIN}


def scene_with(agents: list[Vector]) -> Scene:
    """A scene with the agents of a vector."""
    scene = Scene()
    for agent in agents:
        used = {slot: exact(amount) for slot, amount in (agent.get("used") or {}).items()}
        for slot, amount in (agent.get("reserved") or {}).items():
            used[slot] = used.get(slot, Fraction(0)) + exact(amount)
        scene.add_agent(
            agent["id"],
            agent["capacity"],
            used,
            schedulable=agent.get("schedulable", True) and agent.get("status", "ALIVE").upper() == "ALIVE",
            architecture=agent.get("architecture", "x86_64"),
            kernels=agent.get("containers", 0),
        )
    return scene


def policy_of(given: Vector, session_strategy: str = "fifo") -> Policy:
    """The policy of a vector."""
    strategy = STRATEGIES.get(name := given.get("strategy") or given.get("agent_strategy") or "concentrated", name)
    options = {}
    if given.get("resource_priority") and strategy != ROUND_ROBIN:
        options[SLOT_PRIORITY] = ",".join(given["resource_priority"])
    if given.get("max_containers_per_agent") is not None:
        options[MAX_KERNELS_PER_AGENT] = str(given["max_containers_per_agent"])
    return Policy(session_strategy, strategy, options)


def listed(value: Any) -> list[Any]:
    """A list, or one thing alone as a list."""
    return value if isinstance(value, list) else [value]
