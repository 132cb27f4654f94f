"""Repeats a change that lost against another transaction: it left nothing behind, and the next try mostly succeeds."""

from __future__ import annotations

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_random_exponential

from retinue.manager.store.postgres.database import StoreConflict

_SECONDS, _FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 0.02, 0.5

outlasting_conflicts = retry(
    retry=retry_if_exception_type(StoreConflict),
    wait=wait_random_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE),
    stop=stop_after_delay(_SECONDS),
    reraise=True,
)
"""Decorates a function of one transaction, which is called again for some seconds; then it raises StoreConflict."""
