"""All code that runs on a node, by kernel and language."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import zmq.asyncio

from agent.attempts import Phase
from agent.backends.attachment import NotRunningError
from agent.backends.backend import UnknownAttemptError
from agent.code.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    from agent.backends.backend import Backend

SWEEP_SECONDS = 2.0
MOST_LANGUAGES = 8
"""At a time in one kernel."""


class TooManyLanguagesError(Exception):
    """So many languages are in use in the kernel already."""


class Workspaces:
    """The workspaces of an agent; those of kernels that have ended are closed within `SWEEP_SECONDS`."""

    def __init__(self, backend: Backend, directory: Path, cache: Path) -> None:
        """`directory` is for what a later agent needs to find Jupyter kernels again; it is made when it is needed."""
        self._backend = backend
        self._directory = directory
        self._cache = cache
        self._context: zmq.asyncio.Context | None = None
        self._open: dict[tuple[str, str], Workspace] = {}

    async def find(self, attempt_id: str, language: str) -> Workspace:
        """The workspace of a language in a kernel. Raises UnknownAttemptError, NotRunningError, TooManyLanguagesError."""
        await self._sweep()
        observed = self._backend.observed().get(attempt_id)
        if observed is None:
            raise UnknownAttemptError(f"there is no attempt {attempt_id}")
        if observed.phase is not Phase.RUNNING:
            raise NotRunningError(f"attempt {attempt_id} does not run")
        key = (attempt_id, language.lower())
        if (there := self._open.get(key)) is not None:
            return there
        if sum(attempt == attempt_id for attempt, _ in self._open) >= MOST_LANGUAGES:
            raise TooManyLanguagesError
        if self._context is None:
            self._context = zmq.asyncio.Context()
        name = hashlib.sha256("\0".join(key).encode()).hexdigest()[:32]
        record = self._directory / f"{attempt_id}-{name}.json"
        made = Workspace(
            self._backend, self._context, attempt_id=attempt_id, language=key[1], record=record, cache=self._cache
        )
        self._open[key] = made
        return made

    async def keep_swept(self) -> None:
        """Closes workspaces of kernels that have ended, whose sockets and tasks nothing else would end, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if self._open:
                await self._sweep()

    async def close(self) -> None:
        """Lets go of all; what runs goes on."""
        while self._open:
            await self._open.popitem()[1].close()
        if self._context is not None:
            self._context.term()
            self._context = None

    async def _sweep(self) -> None:
        """Lets go of what is over, and forgets what was written of it."""
        observed = self._backend.observed()
        alive = {attempt_id for attempt_id, attempt in observed.items() if not attempt.phase.ended}
        for key in [key for key in self._open if key[0] not in alive]:
            if (workspace := self._open.pop(key, None)) is not None:
                await workspace.close()
        await asyncio.to_thread(self._forget, alive)

    def _forget(self, alive: set[str]) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._directory.glob("*.json"):
            # Names are attempts', a dash, and a number of fixed length.
            if path.stem[:-33] not in alive:
                path.unlink(missing_ok=True)
