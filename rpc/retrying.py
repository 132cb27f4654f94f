"""A thing that is tried again until it succeeds: logged once for each error, and shown as a condition."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from retinue.rpc.core.retries import Retries, after_failure


class Retrying:
    """One thing that is tried again until it succeeds. Failures are logged once for each error, not at each try."""

    def __init__(
        self,
        what: str,
        log: logging.Logger,
        *,
        changed: Callable[[str], object] = lambda _text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`what` fails, in words: `the manager is not reached`. `changed` is called with the text of a condition, empty
        once it succeeds. `clock` is in seconds since the epoch.
        """
        self._what = what
        self._log = log
        self._changed = changed
        self._clock = clock
        self._shown = ""
        self.retries: Retries | None = None

    @property
    def text(self) -> str:
        """Returns what is said of it; empty while nothing fails."""
        return "" if self.retries is None else f"{self._what}: {self.retries.rounded}"

    def fail(self, error: object) -> None:
        """Notes a failure, after which it is tried again."""
        before, self.retries = self.retries, after_failure(self.retries, error, self._clock())
        new = before is None or before.error != self.retries.error
        self._log.log(
            logging.WARNING if new else logging.DEBUG, "%s, and is tried again: %s", self._what, self.retries.error
        )
        self._show()

    def succeed(self) -> None:
        """Notes a success."""
        if self.retries is not None:
            self._log.info("no longer so: %s (%d times)", self._what, self.retries.tries)
            self.retries = None
            self._show()

    def _show(self) -> None:
        if self.text != self._shown:
            self._shown = self.text
            self._changed(self._shown)
