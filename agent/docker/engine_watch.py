"""Reports an engine that was there and does not answer any more: running kernels continue, and nothing new is placed on the node."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from retinue.agent.conditions import ConditionType
from retinue.agent.errors import BackendError

if TYPE_CHECKING:
    from retinue.agent.conditions import Conditions

INTERVAL = 5.0
"""Seconds between two questions."""
UNRESPONSIVE_AFTER = 15.0
"""Seconds without an answer."""


class Checked(Protocol):
    """An engine that can be asked whether it answers."""

    def check(self) -> None:
        """Returns if it answers; blocks meanwhile. Raises BackendError."""
        ...


async def watch_engine(engine: Checked, conditions: Conditions) -> None:
    """Keeps the condition ENGINE_UNRESPONSIVE until it is cancelled."""
    loop = asyncio.get_running_loop()
    # A thread of its own: one that hangs is not missed anywhere.
    pool = ThreadPoolExecutor(1, "docker-check")
    try:
        answered = time.monotonic()
        while True:
            asking = asyncio.ensure_future(loop.run_in_executor(pool, engine.check))
            # Its outcome may come after the end of this task.
            asking.add_done_callback(lambda late: late.cancelled() or late.exception())
            while not (await asyncio.wait({asking}, timeout=UNRESPONSIVE_AFTER))[0]:
                _report(conditions, "a call hangs")
            try:
                asking.result()
            except BackendError as error:
                if time.monotonic() - answered >= UNRESPONSIVE_AFTER:
                    _report(conditions, str(error))
            else:
                answered = time.monotonic()
                conditions.clear(ConditionType.ENGINE_UNRESPONSIVE)
            await asyncio.sleep(INTERVAL)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _report(conditions: Conditions, why: str) -> None:
    conditions.set(ConditionType.ENGINE_UNRESPONSIVE, f"the container engine does not answer: {why}")
