"""Gives published ports their numbers on a node: which is free, which is in use, and which rests. Pure;
times are passed in.

A number that was given up is not given again for a while, so that a router with an old table is refused and does not
meet another attempt. Times are seconds since the epoch: numbers rest through restarts of the agent and of the node.

Leased ports have numbers in the same way: a port of an attempt has one, however many managers have leased it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from retinue.agent.attempts import ATTEMPT_ID
from retinue.agent.network.errors import PortsExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

NUMBERS = range(61_000, 63_768)
"""Ports of the node's address that are given to published ports: above those that Linux gives to clients, and none of
Kubernetes' NodePorts.
"""
LEASED_NUMBERS = range(62_384, 63_768)
"""Those of leased ports, so that some are left for replicas of endpoints whatever users open."""
MAX_LEASED = 64
"""Leased ports of one attempt."""
# Those of versions before: what was given then is kept until it ends.
_FORMER_NUMBERS = range(30_000, 32_768)
REST = 600.0
"""Seconds that a number is not given again."""
PORTS = range(1, 65_536)


@dataclass(frozen=True, slots=True)
class Publication:
    """A published port: its number on the node, and the port inside the attempt.
    A `closed` attempt is not let to the outside.
    """

    number: int
    port: int
    closed: bool


LeasedPort: TypeAlias = tuple[str, int]
"""An attempt and a port inside it."""


@dataclass(frozen=True, slots=True)
class Publications:
    """The published ports of a node by attempt, until when numbers rest, and the numbers of leased ports."""

    by_attempt: Mapping[str, Publication] = field(default_factory=dict)
    resting: Mapping[int, float] = field(default_factory=dict)
    leased: Mapping[LeasedPort, int] = field(default_factory=dict)

    def given(
        self, attempt_id: str, port: int, now: float, choose: Callable[[Sequence[int]], int], *, closed: bool
    ) -> Publications:
        """Returns the publications with that of an attempt, which keeps the number it has.
        Raises NetworkError when none is free.
        """
        known = self.by_attempt.get(attempt_id)
        if known is not None:
            if (known.port, known.closed) == (port, closed):
                return self
            number = known.number
        else:
            number = self._choose(NUMBERS, now, choose)
        published = {**self.by_attempt, attempt_id: Publication(number, port, closed)}
        return replace(self, by_attempt=published, resting=self._resting(now))

    def without(self, attempt_ids: Collection[str], now: float) -> Publications:
        """Returns the publications without those and the leased ports of some attempts,
        whose numbers rest from now on.
        """
        ended = {key: item for key, item in self.by_attempt.items() if key in attempt_ids}
        kept = {key: item for key, item in self.by_attempt.items() if key not in ended}
        resting = self._resting(now) | {item.number: now + REST for item in ended.values()}
        found = replace(self, by_attempt=kept, resting=resting) if ended else self
        return found.without_leased([key for key in self.leased if key[0] in attempt_ids], now)

    def with_leased(
        self, attempt_id: str, port: int, now: float, choose: Callable[[Sequence[int]], int]
    ) -> Publications:
        """Returns the publications with a leased port, which keeps the number it has.
        Raises PortsExhaustedError when none is free.
        """
        if (attempt_id, port) in self.leased:
            return self
        if sum(key[0] == attempt_id for key in self.leased) >= MAX_LEASED:
            raise PortsExhaustedError(f"{MAX_LEASED} ports of attempt {attempt_id} are leased already")
        leased = {**self.leased, (attempt_id, port): self._choose(LEASED_NUMBERS, now, choose)}
        return replace(self, leased=leased, resting=self._resting(now))

    def without_leased(self, ended: Collection[LeasedPort], now: float) -> Publications:
        """Returns the publications without these leased ports, whose numbers rest from now on."""
        gone = {key: number for key, number in self.leased.items() if key in ended}
        if not gone:
            return self
        kept = {key: number for key, number in self.leased.items() if key not in gone}
        return replace(self, leased=kept, resting=self._resting(now) | dict.fromkeys(gone.values(), now + REST))

    def _choose(self, numbers: range, now: float, choose: Callable[[Sequence[int]], int]) -> int:
        used = {*(item.number for item in self.by_attempt.values()), *self.leased.values()}
        resting = self._resting(now)
        free = [one for one in numbers if one not in used and one not in resting]
        if not free:
            raise PortsExhaustedError("all numbers for published ports of this node are in use, or rest")
        return choose(free)

    def _resting(self, now: float) -> dict[int, float]:
        """Returns the numbers that still rest; a clock that was set back makes none rest longer."""
        return {number: min(until, now + REST) for number, until in self.resting.items() if until > now}


def to_values(publications: Publications) -> dict[str, Any]:
    """Returns what `from_values` reads."""
    return {
        "attempts": {key: [item.number, item.port, item.closed] for key, item in publications.by_attempt.items()},
        "resting": {str(number): until for number, until in publications.resting.items()},
        "leased": [[*key, number] for key, number in publications.leased.items()],
    }


def from_values(values: Mapping[str, Any]) -> Publications:
    """Reads what `to_values` returned. Raises ValueError on anything else."""
    match values:
        case {"attempts": dict(attempts), "resting": dict(resting)}:
            by_attempt = {_attempt_id(key): _publication(item) for key, item in attempts.items()}
            # A file of a version before there were leased ports has none.
            leased = dict(_leased(item) for item in values.get("leased", ()))
            used = [*(item.number for item in by_attempt.values()), *leased.values()]
            if len(set(used)) == len(used):
                rest = {_number(int(key)): float(item) for key, item in resting.items()}
                return Publications(by_attempt, rest, leased)
    raise ValueError("not a list of published ports")


def _attempt_id(text: object) -> str:
    if isinstance(text, str) and ATTEMPT_ID.fullmatch(text):
        return text
    raise ValueError("not an attempt")


def _publication(values: object) -> Publication:
    match values:
        case [int(number), int(port), bool(closed)] if port in PORTS:
            return Publication(_number(number), port, closed)
    raise ValueError("not a published port")


def _leased(values: object) -> tuple[LeasedPort, int]:
    match values:
        case [str(attempt_id), int(port), int(number)] if port in PORTS:
            return (_attempt_id(attempt_id), port), _number(number)
    raise ValueError("not a published port that is leased")


def _number(number: int) -> int:
    if number not in NUMBERS and number not in _FORMER_NUMBERS:
        raise ValueError(f"{number} is not a number of a published port")
    return number
