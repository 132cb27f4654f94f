"""A thing that is tried again until it succeeds: logged once a minute at most, and shown as a condition."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from prometheus_client import Gauge

from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable
from retinue.rpc.core.retries import Retries, after_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

KEEP_SECONDS, SOUND_SECONDS = 1.0, 60.0
"""The pause before a part that has ended is run again, and after how long a run it is sound."""
AGAIN_SECONDS = 60.0
"""Seconds between two lines of the log on one thing that goes on failing."""


FAILING = Gauge(
    "retinue_failing", "1 while a part of the daemon fails and is tried again, else 0; its log says why.", ["part"]
)


class Retrying:
    """One thing that is tried again until it succeeds. The log has its first failure at once, then a line a minute at
    most with the newest error, whether that is the same or not, and one line once it succeeds.
    """

    def __init__(
        self,
        what: str,
        log: logging.Logger,
        *,
        changed: Callable[[str], object] = lambda _text: None,
        clock: Callable[[], float] = time.time,
        level: int = logging.WARNING,
        part: str = "",
    ) -> None:
        """`what` fails, in words: `the manager is not reached`. `changed` is called with the text of a condition, empty
        once it succeeds. `clock` is in seconds since the epoch. `level` is that of the lines on failures.
        `part` has the metric `retinue_failing`; of parts there are few, with names that do not depend on users.
        """
        self._what = what
        self._log = log
        self._changed = changed
        self._clock = clock
        self._level = level
        self._part = part
        if part:
            FAILING.labels(part).set(0)
        self._shown = ""
        self._logged = 0.0
        self.retries: Retries | None = None

    @property
    def text(self) -> str:
        """Returns what is said of it; empty while nothing fails."""
        return "" if self.retries is None else f"{self._what}: {self.retries.rounded}"

    def fail(self, error: object, *, unforeseen: BaseException | None = None) -> None:
        """Notes a failure, after which it is tried again. The log has the traceback of an `unforeseen` error."""
        now = self._clock()
        before, self.retries = self.retries, after_failure(self.retries, error, now)
        # The clock may be set back.
        due = before is None or not 0 <= now - self._logged < AGAIN_SECONDS
        if due:
            self._logged = now
        level = self._level if due else logging.DEBUG
        if before is None:
            self._log.log(level, "%s, and is tried again: %s", self._what, self.retries.error, exc_info=unforeseen)
        else:
            self._log.log(level, "%s: %s", self._what, self.retries, exc_info=unforeseen)
        self._show()

    def succeed(self) -> None:
        """Notes a success."""
        if self.retries is not None:
            self._log.info("no longer so: %s (%d times)", self._what, self.retries.tries)
            self.retries = None
            self._show()

    def _show(self) -> None:
        if self._part:
            FAILING.labels(self._part).set(self.retries is not None)
        if self.text != self._shown:
            self._shown = self.text
            self._changed(self._shown)


async def keep(
    name: str, part: Callable[[], Coroutine[Any, Any, object]], log: logging.Logger, *, pause: float = KEEP_SECONDS
) -> None:
    """Runs a part that does not end by itself until cancelled: again after a pause, whatever it ended with, be it a
    cancellation that nothing asked for. While it fails, the metric `retinue_failing` has it.
    """
    loop = asyncio.get_running_loop()
    failing = Retrying(f"{name} fails", log, level=logging.ERROR, part=name)
    while True:
        sound = loop.call_later(SOUND_SECONDS, failing.succeed)
        try:
            await cancellable(part)
            failing.fail("it ended")
        except (OSError, UnrequestedCancellationError) as error:
            failing.fail(repr(error))
        except Exception as error:  # noqa: BLE001  # shown, and run again
            failing.fail(repr(error), unforeseen=error)
        finally:
            sound.cancel()
        await asyncio.sleep(pause)
