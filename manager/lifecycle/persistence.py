"""Parts of a leader that begin again when the database failed them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from manager.cancellation import cancellable
from manager.store.database import StoreUnavailable
from manager.store.journal import ReaderTooSlow

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0


async def persist(name: str, part: Callable[[], Coroutine[Any, Any, None]], *, pause: float = _PAUSE_SECONDS) -> None:
    """Runs a part until cancelled, again after `pause` seconds when the database failed it or the journal ran ahead of it.

    What a part does is found again in the store. Raises whatever else the part raises.
    """
    while True:
        try:
            await cancellable(part())
        except Exception as error:
            if not _will_pass(error):
                raise
            _log.warning("%s begins again: %r", name, error)
        await asyncio.sleep(pause)


def _will_pass(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.split((StoreUnavailable, ReaderTooSlow))[1] is None
    return isinstance(error, StoreUnavailable | ReaderTooSlow)
