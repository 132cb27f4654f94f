"""Decides which networks may open no connections for a while, as strangers there flood. Pure, with the time passed in.

Whoever floods and opens the next connection as soon as one is ended costs as much as before. So a network whose
connections flooded is kept out for a second, and for twice as long each further time. A network from which anyone has
authenticated of late is never kept out: users behind one address share it with whoever floods from there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.server.source_filter import MAX_NETWORKS

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_SECONDS, LONGEST_SECONDS = 1.0, 300.0
# After it, the next penalty is a first one again.
FORGIVEN_SECONDS = 600.0
# For how long a network is known by one who authenticated: someone who works there comes back within it.
KNOWN_SECONDS = 3600.0
_MAX_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class _Penalty:
    seconds: float
    until: float


class Penalties:
    """Remembers who flooded and who authenticated, in bounded memory."""

    def __init__(self, most: int = MAX_NETWORKS) -> None:
        """Keeps out `most` networks at a time; those that flooded last."""
        self._most = most
        # By network, those that came last at the end.
        self._penalties: OrderedDict[str, _Penalty] = OrderedDict()
        self._known: OrderedDict[str, float] = OrderedDict()

    def know(self, networks: Iterable[str], now: float) -> None:
        """Notes that callers of these networks have authenticated, or still have connections."""
        for network in networks:
            self._known[network] = now
            self._known.move_to_end(network)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def add(self, networks: Iterable[str], now: float) -> dict[str, float]:
        """Notes that these networks flooded; returns those that are kept out from now on, and for how many seconds."""
        begun = {}
        for network in networks:
            before = self._penalties.get(network)
            # Connections that were there before it began to be kept out are no further flood.
            if self._is_known(network, now) or (before is not None and now < before.until):
                continue
            again = before is not None and now < before.until + FORGIVEN_SECONDS
            seconds = min(2 * before.seconds, LONGEST_SECONDS) if before is not None and again else FIRST_SECONDS
            self._penalties[network] = _Penalty(seconds, now + seconds)
            self._penalties.move_to_end(network)
            begun[network] = seconds
        while len(self._penalties) > self._most:
            self._penalties.popitem(last=False)
        return begun

    def kept_out(self, now: float) -> frozenset[str]:
        """Returns the networks that may open no connections now."""
        return frozenset(
            network
            for network, penalty in self._penalties.items()
            if now < penalty.until and not self._is_known(network, now)
        )

    def _is_known(self, network: str, now: float) -> bool:
        return now - self._known.get(network, -KNOWN_SECONDS) < KNOWN_SECONDS
