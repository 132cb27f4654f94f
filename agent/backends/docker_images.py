"""Images on a node: each is fetched once, however many kernels wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from agent.backends.docker_engine import EngineError, EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.backends.docker_engine import Engine

log = logging.getLogger(__name__)

PULL_TIMEOUT = 1800.0
"""Seconds until the fetching of an image is given up."""


class ImageError(Exception):
    """An image cannot be had; the text says why."""


class Images:
    """The images of one engine."""

    def __init__(self, engine: Engine) -> None:
        """Nothing is asked of the engine yet."""
        self._engine = engine
        self._pulls: dict[str, asyncio.Task[None]] = {}

    async def ensure(self, reference: str) -> str:
        """Makes sure that the image is on the node, and returns the user it names.

        Raises ImageError, or EngineUnavailableError.
        """
        user = await asyncio.to_thread(self._engine.image_user, reference)
        if user is None:
            if (task := self._pulls.get(reference)) is None:
                task = asyncio.get_running_loop().create_task(self._pull(reference), name=f"pull {reference}")
                self._pulls[reference] = task
            # Whoever waits may be cancelled; the others still want it.
            await asyncio.shield(task)
            user = await asyncio.to_thread(self._engine.image_user, reference)
        if user is None:
            raise ImageError(f"image {reference} was fetched, and is gone again")
        return user

    async def close(self) -> None:
        """Waits for no image any more; the engine may go on fetching."""
        pulls = list(self._pulls.values())
        for task in pulls:
            task.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)

    async def _pull(self, reference: str) -> None:
        log.info("fetching image %s", reference)
        try:
            async with asyncio.timeout(PULL_TIMEOUT):
                await _in_thread(lambda: self._engine.pull(reference))
        except TimeoutError as error:
            raise ImageError(f"image {reference} was not fetched within {PULL_TIMEOUT:.0f} s") from error
        except EngineUnavailableError:
            raise
        except EngineError as error:
            raise ImageError(f"image {reference} cannot be fetched: {error}") from error
        finally:
            del self._pulls[reference]


async def _in_thread(action: Callable[[], None]) -> None:
    """Runs something in a thread that nobody waits for when the process ends: a registry may be silent for long."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        problem: Exception | None = None
        try:
            action()
        except Exception as error:  # noqa: BLE001 - raised again for whoever waits
            problem = error
        # The loop may be over before the registry has answered.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, problem)

    threading.Thread(target=run, name="pull", daemon=True).start()
    await done
