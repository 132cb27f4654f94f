"""What the replicas of endpoints use of what they hold, and their own metrics: the newest that agents report,
for the autoscaler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.manager.domain.session.attempts import AttemptUsage, UsageWatch, attempt_id
from retinue.manager.domain.session.usage import CUDA, Meter, Sample, Use, share_of

if TYPE_CHECKING:
    import uuid

    from retinue.manager.store.sessions.idle import MeasuredKernel

# Seconds between two reports of an agent, and for which one is good.
INTERVAL_SECONDS, FRESH_SECONDS = 2.0, 8.0


@dataclass(slots=True)
class _Attempt:
    """An attempt that is watched, with what its agent reported last."""

    agent_id: str
    slots: Mapping[str, int]
    meter: Meter = field(default_factory=Meter)
    use: Use | None = None
    gpu: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    heard: float = float("-inf")


class ReplicaUsage:
    """The use of the replicas that are watched. Belongs on one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._attempts: dict[str, _Attempt] = {}
        # By replica; main1 is the kernel that has the id of its session.
        self._kernels: dict[uuid.UUID, tuple[MeasuredKernel, ...]] = {}

    def unknown(self, sessions: Collection[uuid.UUID]) -> list[uuid.UUID]:
        """Returns those of the replicas whose kernels are not known."""
        return [item for item in sessions if item not in self._kernels]

    def watch(
        self, names: Mapping[uuid.UUID, frozenset[str]], kernels: Iterable[MeasuredKernel]
    ) -> dict[str, UsageWatch]:
        """Watches these replicas with these metrics of their own, and no others;
        `kernels` are those of replicas that were not known.

        Returns what agents have to report.
        """
        found: dict[uuid.UUID, list[MeasuredKernel]] = {}
        for kernel in kernels:
            found.setdefault(kernel.session_id, []).append(kernel)
        known = {**self._kernels, **{key: tuple(items) for key, items in found.items()}}
        self._kernels = {key: items for key, items in known.items() if key in names}
        attempts: dict[str, _Attempt] = {}
        metrics: dict[str, dict[str, frozenset[str]]] = {}
        for session_id, items in self._kernels.items():
            for kernel in items:
                name = attempt_id(kernel.kernel_id, kernel.epoch)
                attempts[name] = self._attempts.get(name) or _Attempt(kernel.agent_id, kernel.slots)
                of_agent = metrics.setdefault(kernel.agent_id, {})
                if kernel.kernel_id == session_id and names[session_id]:
                    of_agent[name] = names[session_id]
        self._attempts = attempts
        return {agent_id: UsageWatch(INTERVAL_SECONDS, of_agent) for agent_id, of_agent in metrics.items()}

    def add(self, agent_id: str, samples: Iterable[AttemptUsage]) -> None:
        """Takes in what an agent reports of its attempts; of those of other agents nothing is believed."""
        for sample in samples:
            attempt = self._attempts.get(sample.attempt_id)
            if attempt is None or attempt.agent_id != agent_id:
                continue
            attempt.meter.add(Sample(sample.clock, sample.cpu, sample.memory), FRESH_SECONDS)
            if attempt.meter.seconds > 0:
                attempt.use = attempt.meter.take()
            attempt.gpu, attempt.metrics, attempt.heard = sample.gpu, sample.metrics, self._clock()

    def utilization(self, session_id: uuid.UUID, slot: str) -> float | None:
        """Returns the use of a slot by a replica, in percent of what its kernels hold together;
        None while it is not known of all of them.
        """
        fresh = self._fresh(session_id)
        if slot == CUDA:
            held = [(item.slots.get(CUDA, 0), item.gpu) for item in fresh if item.slots.get(CUDA)]
            known = [(amount, gpu) for amount, gpu in held if gpu is not None]
            if not held or len(known) < len(held):
                return None
            return sum(amount * gpu for amount, gpu in known) / sum(amount for amount, _ in known)
        uses = [(item.slots, item.use) for item in fresh if item.use is not None]
        return share_of(uses).get(slot) if fresh and len(uses) == len(fresh) else None

    def metric(self, session_id: uuid.UUID, name: str) -> float | None:
        """Returns a metric that main1 of a replica shows; None while it is not known."""
        for kernel in self._kernels.get(session_id, ()):
            if kernel.kernel_id == session_id:
                attempt = self._attempts[attempt_id(kernel.kernel_id, kernel.epoch)]
                return attempt.metrics.get(name) if self._is_fresh(attempt) else None
        return None

    def _fresh(self, session_id: uuid.UUID) -> Sequence[_Attempt]:
        """Returns the attempts of a replica; none while one of them is not reported on."""
        kernels = self._kernels.get(session_id, ())
        found = [self._attempts[attempt_id(kernel.kernel_id, kernel.epoch)] for kernel in kernels]
        return found if all(map(self._is_fresh, found)) else ()

    def _is_fresh(self, attempt: _Attempt) -> bool:
        return self._clock() - attempt.heard <= FRESH_SECONDS
