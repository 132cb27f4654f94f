"""Conditions of the node: each has a type, and within it a reason; a condition stays until it is cleared."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.rpc.core.reasons import AgentConditionType

MAX_CONDITIONS = 32
MAX_MESSAGE = 1024
"""Bytes of UTF-8."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; `since` is in seconds since the epoch."""

    type: AgentConditionType
    reason: str
    message: str
    since: float


class Conditions:
    """The conditions of a node, at most one for each type and reason. Methods may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns seconds since the epoch."""
        self._clock = clock
        self._lock = threading.Lock()
        self._conditions: dict[tuple[AgentConditionType, str], Condition] = {}
        self._listeners: set[Callable[[], object]] = set()

    def set(self, kind: AgentConditionType, message: str, reason: str = "") -> None:
        """Sets a condition, or gives it another message; when it was set first stays."""
        message = message.encode()[:MAX_MESSAGE].decode(errors="ignore")
        with self._lock:
            known = self._conditions.get((kind, reason))
            if known is not None and known.message == message:
                return
            since = self._clock() if known is None else known.since
            self._conditions[kind, reason] = Condition(kind, reason, message, since)
        self._notify()

    def clear(self, kind: AgentConditionType, reason: str = "") -> None:
        """Clears a condition, if it is set."""
        with self._lock:
            if self._conditions.pop((kind, reason), None) is None:
                return
        self._notify()

    def update(self, kind: AgentConditionType, message: str, reason: str = "") -> None:
        """Sets a condition, or clears it when the message is empty."""
        if message:
            self.set(kind, message, reason)
        else:
            self.clear(kind, reason)

    def all(self) -> tuple[Condition, ...]:
        """Returns what is set now, the longest standing first."""
        with self._lock:
            found = sorted(self._conditions.values(), key=lambda condition: (condition.since, condition.type.value))
        return tuple(found[:MAX_CONDITIONS])

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called, from any thread, at each change; the result ends that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()
