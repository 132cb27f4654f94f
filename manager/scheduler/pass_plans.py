"""The decisions of a scheduling pass, between its planning and its commit. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np

from retinue.manager.scheduler.core.cache import Holdings
from retinue.manager.scheduler.core.snapshot import Snapshot
from retinue.manager.scheduling.columns import Integers, Running
from retinue.manager.scheduling.scheduling_pass import Decisions
from retinue.manager.scheduling.strategies import Settings
from retinue.manager.store.placements import Network

# A pass over no more kernels and agents than these is small.
_SMALL_KERNELS, _SMALL_AGENTS = 16, 500


@dataclass(frozen=True, slots=True)
class Plan:
    """The placements to be committed: sessions in order of decision, what they take, and for each its network, if it has one."""

    group: str
    ids: list[uuid.UUID]
    holdings: Holdings
    tries: list[int]
    networks: dict[uuid.UUID, Network]
    rotation: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a pass: placements first, then which sessions are preempted for which."""

    plan: Plan | None
    settings: Settings
    snapshot: Snapshot
    running: Running | None
    decisions: Decisions

    @property
    def preempts(self) -> bool:
        """Returns True when sessions are to be preempted."""
        return bool(self.decisions.preemptions)


def holdings_of(snapshot: Snapshot, decisions: Decisions, sessions: Integers, width: int) -> Holdings:
    """Returns what sessions in rows of the queue take, in terms of the cache."""
    every = snapshot.queue.offsets
    sizes = every[sessions + 1] - every[sessions]
    offsets = np.zeros(len(sessions) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    kernels = np.repeat(every[sessions] - offsets[:-1], sizes) + np.arange(offsets[-1])
    requests = np.zeros((len(kernels), width), np.int64)
    requests[:, snapshot.columns] = snapshot.queue.requests[kernels]
    return Holdings(
        agents=snapshot.agent_rows[decisions.kernel_agents[kernels]],
        requests=requests,
        accounts=snapshot.accounts[sessions],
        offsets=offsets,
    )


def is_small(settings: Settings, snapshot: Snapshot, running: Running | None) -> bool:
    """Returns whether a pass takes a few milliseconds at most, less than a thread is worth for a single session.

    A larger pass computes for up to a second, and so may one that evaluates running sessions; an external strategy may take its time. The loop
    must continue meanwhile.
    """
    if running is not None:
        return False
    strange = settings.custom_session is not None or settings.custom_agent is not None
    return not strange and len(snapshot.queue.requests) <= _SMALL_KERNELS and len(snapshot.agent_rows) <= _SMALL_AGENTS


def kind(network: Network | None) -> str:
    """Returns what sessions say of their network."""
    if network is None:
        return ""
    return "VXLAN" if network.vni else "BRIDGE"
