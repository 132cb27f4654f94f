"""Networks as far as the reconciler has to know them, and when they are compared with their plan:
what others removed is made again, or reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from retinue.agent.network.paths import NO_PATHS
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Set

    from retinue.agent.conditions import Conditions
    from retinue.agent.network.core.topology import Network
    from retinue.agent.network.namespaces import NetworkNamespace
    from retinue.agent.network.paths import PathReport


INTERVAL = 30.0
"""Seconds between two inspections of one session's network."""
MAX_NAMED = 10
"""Sessions in the message of the condition."""


class Links(Protocol):
    """The networks of sessions on this node. Every method may be repeated after a crash at any point."""

    async def ensure(self, network: Network) -> int:
        """Makes the network whole; returns how many steps that took, 0 when it was."""
        ...

    async def attach(self, network: Network, kernel_id: str, namespace: NetworkNamespace) -> int:
        """Attaches a kernel to the network in its network namespace; returns as `ensure` does."""
        ...

    async def remove(self, session_id: str) -> object:
        """Removes the network."""
        ...

    async def observed(self) -> set[str]:
        """Sessions of which anything of a network exists."""
        ...


class Paths(Protocol):
    """The proofs that packets come from the other nodes of networks."""

    async def release(self, session_id: str) -> object:
        """Gives up what is left of a network that others have removed, so that it can be made again."""
        ...

    async def follow(self, network: Network) -> object:
        """Proves the paths of a network that is whole."""
        ...

    def forget(self, session_id: str) -> object:
        """Ends the proofs of a network that is to be removed."""
        ...

    def report(self, session_id: str) -> PathReport:
        """Returns what is known of a network's paths."""
        ...


class NoPaths:
    """Proves nothing, and holds up nothing."""

    async def release(self, session_id: str) -> None:
        """Does nothing."""

    async def follow(self, network: Network) -> None:
        """Does nothing."""

    def forget(self, session_id: str) -> None:
        """Does nothing."""

    def report(self, session_id: str) -> PathReport:
        """Returns that kernels may start."""
        del session_id
        return NO_PATHS


class Egress(Protocol):
    """The egress links of kernels on this node. Every method may be repeated after a crash at any point."""

    async def attach(self, attempt_id: str, namespace: NetworkNamespace, session_address: str = "") -> int:
        """Creates an attempt's egress link in its network namespace; `session_address` is its address in its session's
        network, if it has one. Returns how many steps that took, 0 when it was there.
        """
        ...

    async def remove(self, attempt_id: str) -> object:
        """Removes the egress link of an attempt that ended, if it is not gone with the namespace."""
        ...


class Publisher(Protocol):
    """The published ports of kernels on this node. May be repeated after a crash at any point."""

    async def publish(self, attempt_id: str, port: int, *, closed: bool) -> object:
        """Publishes a port of an attempt that has its egress link; a `closed` one opens nothing to the outside."""
        ...

    async def refresh(self, attempt_id: str, namespace: NetworkNamespace) -> object:
        """Has the published and leased ports of an attempt lead to its egress link as it is now."""
        ...


@dataclass(frozen=True, slots=True)
class InspectNetwork:
    """Compare a session's network, and its kernels' links to it, with the plan, and repair them."""

    session_id: str


@dataclass(frozen=True, slots=True)
class InspectEgress:
    """Compare a kernel's egress link, and its published and leased ports, with the plan, and repair them."""

    attempt_id: str


class Inspections:
    """The due inspections of networks by session and of egress links by attempt, and those that could not be made or
    repaired. Pure but for the condition; times are monotonic.
    """

    def __init__(self, conditions: Conditions, interval: float) -> None:
        """Knows of no network yet."""
        self._conditions = conditions
        self._interval = interval
        self._due: dict[str, float] = {}
        self._degraded: dict[str, str] = {}
        # Kernels that could not be attached last time: one that is ending cannot, and is gone the next time.
        self._detached: set[str] = set()

    def follow(self, ready: Set[str], existing: Set[str], now: float) -> None:
        """Takes up networks and links that are ready, and drops those that exist no more."""
        for key in ready - self._due.keys():
            self._due[key] = now + self._interval
        for key in (self._due.keys() | self._degraded.keys()) - existing:
            self._due.pop(key, None)
            self.pass_(key)

    def next(self, ready: Set[str], now: float) -> str | None:
        """Returns what is to be inspected now, if anything; one at a time keeps inspections cheap."""
        due = [(time, key) for key, time in self._due.items() if key in ready and time <= now]
        if not due:
            return None
        key = min(due)[1]
        self._due[key] = now + self._interval
        return key

    def wait(self, now: float) -> float | None:
        """Returns the seconds until the next inspection; None when there is none."""
        return min((time - now for time in self._due.values() if time > now), default=None)

    def expedite(self, key: str, now: float) -> None:
        """Has a network that was made again, or a link that was not, inspected at once: kernels may have lost links."""
        if key in self._degraded:
            self._due[key] = now

    def detach(self, attempt_id: str) -> bool:
        """Notes that a kernel could not be attached; returns whether it could not the last time either."""
        again = attempt_id in self._detached
        self._detached.add(attempt_id)
        return again

    def attach(self, attempt_id: str) -> None:
        """Notes that a kernel is attached."""
        self._detached.discard(attempt_id)

    @property
    def degraded(self) -> Set[str]:
        """Returns the sessions and attempts whose network or egress link could not be made or mended the last time."""
        return self._degraded.keys()

    def fail(self, key: str, message: str) -> None:
        """Notes that a network or a link could not be made or repaired."""
        self._degraded[key] = message
        self._report()

    def pass_(self, key: str) -> None:
        """Notes that a network or a link is as planned."""
        if self._degraded.pop(key, None) is not None:
            self._report()

    def _report(self) -> None:
        named = [f"{key} ({message})" for key, message in sorted(self._degraded.items())[:MAX_NAMED]]
        number = len(self._degraded)
        message = f"{number} networks or egress links cannot be made or repaired: {', '.join(named)}" if named else ""
        self._conditions.update(AgentConditionType.NETWORK_DEGRADED, message)
