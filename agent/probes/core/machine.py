"""Decides when an attempt is asked and what its answers say: startup first, then readiness and liveness. Pure;
times are passed in.

Times are monotonic, in seconds. Each probe counts answers in a row: one failure says nothing yet,
and one success may be chance.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retinue.agent.attempts import Probe, PublishedPort

FIRST_PERIOD = 1.0
"""Seconds between two questions until the first success, at the most:
what starts is routed to soon after it is ready.
"""


class HealthState(enum.Enum):
    """What the probes say of an attempt."""

    STARTING = "starting"
    READY = "ready"
    UNREADY = "unready"


class Role(enum.Enum):
    """What a probe is for."""

    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question; `message` says what was wrong."""

    success: bool
    message: str = ""


@dataclass(slots=True)
class _Asked:
    """A probe with its answers in a row, and when it is asked next; None while the answer is waited for."""

    probe: Probe
    due: float | None
    began: float = 0.0
    successes: int = 0
    failures: int = 0
    succeeded: bool = False

    def begin(self, now: float) -> None:
        self.began, self.due = now, None

    def take(self, answer: Answer, now: float) -> None:
        self.successes, self.failures = (self.successes + 1, 0) if answer.success else (0, self.failures + 1)
        self.succeeded = self.succeeded or answer.success
        period = self.probe.period if self.succeeded else min(FIRST_PERIOD, self.probe.period)
        self.due = max(now, self.began + period)

    @property
    def passed(self) -> bool:
        return self.successes >= self.probe.successes

    @property
    def failed(self) -> bool:
        return self.failures >= self.probe.failures


class ProbeMachine:
    """The probes of one attempt from its start on."""

    def __init__(self, published: PublishedPort, now: float) -> None:
        """Asks the first question at once."""
        self._published = published
        self._asked: dict[Role, _Asked] = {}
        self.state = HealthState.STARTING
        self.message = ""
        # Why it has to be stopped; empty as long as it has not.
        self.dead = ""
        # When routers last had an answer from it.
        self._answered: float | None = None
        if published.startup is not None:
            self._asked[Role.STARTUP] = _Asked(published.startup, now)
        else:
            self._start(now)

    def due(self, now: float) -> list[tuple[Role, Probe]]:
        """Returns the questions to be asked now; `answered` has to follow for each of them."""
        due = [(role, asked) for role, asked in self._asked.items() if asked.due is not None and asked.due <= now]
        for _, asked in due:
            asked.begin(now)
        return [(role, asked.probe) for role, asked in due]

    def next_due(self) -> float | None:
        """Returns when the next question is to be asked; None while there is none before the next answer."""
        return min((asked.due for asked in self._asked.values() if asked.due is not None), default=None)

    def answered(self, role: Role, answer: Answer, now: float) -> None:
        """Takes an answer; one to a question that is no longer asked says nothing."""
        if self.dead or (asked := self._asked.get(role)) is None:
            return
        asked.take(answer, now)
        if role is Role.LIVENESS and self._answered is not None and now - self._answered <= asked.probe.period:
            # It is busy, and not dead.
            asked.failures = 0
        elif role is Role.LIVENESS:
            if asked.failed:
                self.dead = f"its liveness probe failed {asked.failures} times in a row: {answer.message}"
                self._asked.clear()
        elif asked.passed:
            if role is Role.STARTUP:
                self.message = ""
                del self._asked[Role.STARTUP]
                self._start(now)
            else:
                self.state, self.message = HealthState.READY, ""
        elif asked.failed and self.state is not HealthState.UNREADY:
            if self.state is HealthState.READY:
                self.state = HealthState.UNREADY
            self.message = f"its {role.value} probe failed: {answer.message}"

    def answers(self, now: float) -> None:
        """Notes that it answers requests: for a period, failures of its liveness probe do not count."""
        self._answered = now

    def _start(self, now: float) -> None:
        self._asked[Role.READINESS] = _Asked(self._published.readiness, now)
        if self._published.liveness is not None:
            self._asked[Role.LIVENESS] = _Asked(self._published.liveness, now)
