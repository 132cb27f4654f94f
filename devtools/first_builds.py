"""What the machine of a local cluster has not built yet: it is built once, beside the cluster, and reported when it is
ready. What needs it waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import retinue.manager
from retinue.agent.builds import IN_BACKGROUND, PARTS, NodeBuilds, Part, end
from retinue.agent.kernel.build import CACHE, PROGRAMS, BuildError, build

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# `run` reports what fails; without a handler a warning is printed, too.
logging.getLogger("retinue.agent.builds").addHandler(logging.NullHandler())

CONSOLE = "the web console"
_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
_SAID_BYTES = 500


class FirstBuilds:
    """The builds that a local cluster needs."""

    def __init__(self) -> None:
        """Looks at what is missing."""
        self._builds = NodeBuilds(CACHE, parts=PARTS)
        self._parts = [part for part in PARTS if part.is_needed() and part.find(CACHE) is None]
        self._checkout = _checkout_without_console()

    @property
    def missing(self) -> list[str]:
        """Returns the titles of what is missing."""
        return [part.title for part in self._parts] + [CONSOLE] * (self._checkout is not None)

    async def begin(self) -> None:
        """Builds the programs without which no agent starts, and begins to build what else kernels need: agents that
        start later wait for that.
        """
        # First: what is built beside it may fill the disk for a while. Agents report what fails.
        with contextlib.suppress(BuildError):
            for program in PROGRAMS:
                await asyncio.to_thread(build, CACHE, program)
        await self._builds.begin()

    async def close(self) -> None:
        """Ends the builds in progress."""
        await self._builds.close()

    async def run(self, logs: Path) -> AsyncIterator[tuple[str, str]]:
        """Builds what is missing, and yields the title of each when it is ready, with the reason if it failed; `logs`
        is the directory for the output of builds.
        """
        tasks = {asyncio.create_task(self._ready(part), name=part.name): part.title for part in self._parts}
        if self._checkout is not None:
            log = logs / "console-build.log"
            tasks[asyncio.create_task(_build_console(self._checkout, log), name="console")] = CONSOLE
        try:
            pending = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield tasks[task], task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ready(self, part: Part) -> str:
        # One that failed while the cluster started is not tried again.
        if not self._builds.failure(part):
            await self._builds.ready(part)
        return self._builds.failure(part)


def _checkout_without_console() -> Path | None:
    """Returns the checkout that the manager runs from, if its console was not built; a package holds it."""
    manager = Path(next(iter(retinue.manager.__path__))).resolve()
    checkout = manager.parent
    if (manager / "console/static/index.html").is_file() or not (checkout / "scripts/build-console").is_file():
        return None
    return checkout


def _environment(checkout: Path) -> str:
    """Returns the path of the environment that this runs in, for make, which splits paths at spaces: relative if it is
    the checkout's own.
    """
    prefix = Path(sys.prefix)
    return str(prefix.relative_to(checkout) if prefix.is_relative_to(checkout) else prefix)


async def _build_console(checkout: Path, log: Path) -> str:
    """Builds the console of a checkout; returns why it failed, and nothing when it did not."""
    # A make of its own, also where a target of make runs this.
    environment = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *IN_BACKGROUND,
                *("make", "--no-print-directory", "-C", str(checkout)),
                *("console", f"VENV={_environment(checkout)}"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            return str(error)
    try:
        status = await process.wait()
    except asyncio.CancelledError:
        await end(process)
        raise
    if status == 0:
        return ""
    said = (await asyncio.to_thread(log.read_bytes))[-_SAID_BYTES:].decode(errors="replace").strip()
    return f"{said}\n(`make console` in {checkout} tries again)"
