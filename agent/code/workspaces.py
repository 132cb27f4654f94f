"""All code that runs on a node, by kernel and language."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import zmq.asyncio

from retinue.agent.attempts import Phase
from retinue.agent.code.workspace import Workspace
from retinue.agent.errors import NotRunningError, PausedError, UnknownAttemptError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from retinue.agent.builds import NodeBuilds
    from retinue.agent.runtime.contract import Runtime

SWEEP_SECONDS = 2.0
MAX_LANGUAGES = 8
"""Languages in use at a time in one kernel."""


class TooManyLanguagesError(Exception):
    """So many languages are in use in the kernel already."""


class Workspaces:
    """The workspaces of an agent; those of kernels that have ended are closed within `SWEEP_SECONDS`."""

    def __init__(self, runtime: Runtime, directory: Path, builds: NodeBuilds) -> None:
        """`builds` has the Python for code. `directory` is for what a later agent needs to find Jupyter kernels again;
        it is made when it is needed.
        """
        self._runtime = runtime
        self._directory = directory
        self._builds = builds
        self._context: zmq.asyncio.Context | None = None
        self._open: dict[tuple[str, str], Workspace] = {}

    @asynccontextmanager
    async def open(self, attempt_id: str, language: str) -> AsyncGenerator[Workspace]:
        """Yields the workspace of a language in a kernel; one in which nothing was started
        goes with the last stream that has it open.

        Raises UnknownAttemptError and NotRunningError.
        """
        key = (attempt_id, language.lower())
        workspace = await self._find(key)
        # Nothing is awaited before this: no other stream closes it meanwhile.
        workspace.streams += 1
        try:
            yield workspace
        finally:
            workspace.streams -= 1
            if not workspace.streams and not workspace.in_use and self._open.get(key) is workspace:
                del self._open[key]
                await workspace.close()

    async def _find(self, key: tuple[str, str]) -> Workspace:
        await self._sweep()
        attempt_id, language = key
        observed = self._runtime.observe().get(attempt_id)
        if observed is None:
            raise UnknownAttemptError(f"there is no attempt {attempt_id}")
        if observed.phase is not Phase.RUNNING:
            raise NotRunningError(f"attempt {attempt_id} does not run")
        if observed.pause is not None:
            raise PausedError(observed.pause.message)
        if (there := self._open.get(key)) is not None:
            return there
        if self._context is None:
            self._context = zmq.asyncio.Context()
        name = hashlib.sha256("\0".join(key).encode()).hexdigest()[:32]
        record = self._directory / f"{attempt_id}-{name}.json"
        made = Workspace(
            self._runtime,
            self._context,
            attempt_id=attempt_id,
            language=language,
            record=record,
            builds=self._builds,
            admit=lambda: self._admit(key),
        )
        self._open[key] = made
        return made

    def _admit(self, key: tuple[str, str]) -> None:
        """Raises TooManyLanguagesError when so many other languages are in use that this one cannot be started."""
        others = (other for other, workspace in self._open.items() if other != key and workspace.in_use)
        if sum(attempt_id == key[0] for attempt_id, _ in others) >= MAX_LANGUAGES:
            raise TooManyLanguagesError

    async def keep_swept(self) -> None:
        """Closes workspaces of kernels that have ended, whose sockets and tasks nothing else would end,
        until cancelled.
        """
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if self._open:
                await self._sweep()

    async def close(self) -> None:
        """Disconnects from all; runs continue."""
        while self._open:
            await self._open.popitem()[1].close()
        if self._context is not None:
            self._context.term()
            self._context = None

    async def _sweep(self) -> None:
        """Closes workspaces of ended attempts, and removes their records."""
        observed = self._runtime.observe()
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
