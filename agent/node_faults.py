"""What the agent's process lacks of its node: descriptors, threads, a disk that takes what is written.

Everything that an agent does may fail for that, over and over. Callers get an answer that says what to do, the node has
a condition, and the log has one line a minute instead of a traceback each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retinue.agent.conditions import Conditions

_log = logging.getLogger(__name__)

QUIET = 60.0
"""Seconds without a failure after which a fault counts as mended."""
INTERVAL = 5.0
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A lack: its name, what is lacking, and what to do."""

    part: str
    what: str
    remedy: str

    def __str__(self) -> str:
        """Returns all of it in words."""
        return f"{self.what}: {self.remedy}"


DESCRIPTORS = NodeFault(
    "descriptors",
    "the agent has no file descriptors left",
    "raise its limit on the node (LimitNOFILE= in its unit, `ulimit -n`) and start it again; kernels run on meanwhile",
)
ALL_DESCRIPTORS = NodeFault(
    "descriptors", "the node has no file descriptors left", "raise fs.file-max, or end what has so many files open"
)
THREADS = NodeFault(
    "threads",
    "the agent can start no more threads or processes",
    "raise its limit on the node (TasksMax= in its unit, `ulimit -u`, kernel.pid_max); kernels run on meanwhile",
)
READ_ONLY = NodeFault(
    "writes",
    "a disk of the agent's node is read-only",
    "mount it writable; the kernel's log on the node says why it is",
)
FULL = NodeFault("writes", "a disk of the agent's node is full", "free space there; kernels run on meanwhile")
_BY_NUMBER = {
    errno.EMFILE: DESCRIPTORS,
    errno.ENFILE: ALL_DESCRIPTORS,
    errno.EROFS: READ_ONLY,
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
}
# Python's words, in a RuntimeError.
_NO_THREAD = "can't start new thread"
# Errors behind an error that are looked at.
_DEEPEST = 16


def fault_of(error: BaseException | None) -> NodeFault | None:
    """Returns the lack behind an error, or behind what it came from; None where it is another one. Pure."""
    for each in _behind(error):
        if isinstance(each, RuntimeError) and _NO_THREAD in str(each):
            return THREADS
        # Watches of files have a limit that Linux says the same of.
        if isinstance(each, OSError) and each.errno in _BY_NUMBER and "inotify" not in str(each):
            return _BY_NUMBER[each.errno]
    return None


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_DEEPEST):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class NodeFaults(logging.Filter):
    """The lacks of one agent. As a filter of the log's handlers it takes the lines that tell of one, and writes one a
    minute instead. Any thread may log.
    """

    def __init__(self, conditions: Conditions, clock: Callable[[], float] = time.time) -> None:
        """`clock` is in seconds since the epoch."""
        super().__init__()
        self._conditions = conditions
        self._clock = clock
        self._last: dict[str, float] = {}
        self._texts: dict[str, str] = {}
        self._parts = {
            part: Retrying(
                f"the agent lacks {part}",
                _log,
                changed=lambda text, part=part: self._show(part, text),  # type: ignore[misc]
                clock=clock,
                level=logging.ERROR,
                part=part,
            )
            for part in (DESCRIPTORS.part, READ_ONLY.part, THREADS.part)
        }

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a line is written: none that tells of a lack. Called by the log."""
        error = record.exc_info[1] if record.exc_info else None
        arguments = record.args if isinstance(record.args, tuple) else ()
        for each in (error, *(one for one in arguments if isinstance(one, BaseException))):
            if (fault := fault_of(each)) is not None:
                self._note(fault, record.getMessage())
                return False
        return True

    def _note(self, fault: NodeFault, what: str) -> None:
        self._last[fault.part] = self._clock()
        self._texts[fault.part] = str(fault)
        self._parts[fault.part].fail(f"{fault} ({what})")

    def look(self) -> None:
        """Takes for mended what did not fail for a while."""
        now = self._clock()
        for part, retrying in self._parts.items():
            # The clock may be set back.
            if retrying.retries is not None and not 0 <= now - self._last[part] < QUIET:
                retrying.succeed()

    async def watch(self) -> None:
        """Looks every now and then until it is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.look()

    def _show(self, part: str, text: str) -> None:
        if part == READ_ONLY.part:
            # The watch over the disk has conditions of its own.
            return
        shown = sorted(self._texts[one] for one in (DESCRIPTORS.part, THREADS.part) if self._parts[one].text)
        reason = AgentConditionReason.LIMIT_REACHED
        self._conditions.update(AgentConditionType.OTHER, "; ".join(shown) if text or shown else "", reason)


@contextlib.contextmanager
def noting_faults(conditions: Conditions) -> Iterator[NodeFaults]:
    """Has all handlers of the log leave lines that tell of a lack to the result, while this lasts."""
    faults, handlers = NodeFaults(conditions), tuple(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(faults)
    try:
        yield faults
    finally:
        for handler in handlers:
            handler.removeFilter(faults)
