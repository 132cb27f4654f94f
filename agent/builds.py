"""The parts of kernels that take a minute to build: a node builds each once, in the background.

Each build is a process of its own at low priority, and ends with the agent. Agents of one machine share the results:
while one builds, the others wait. Who builds a part holds the lock of its file beside the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.kernel.build import CACHE, BuildError
from retinue.agent.kernel.guest_linux import NoLinuxError, fetch, find_fetched
from retinue.agent.kernel.python_runtime import build_runtime, find_runtime
from retinue.agent.kernel.ssh_programs import build_programs, find_programs
from retinue.rpc.interpreter import module_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_log = logging.getLogger(__name__)

IN_BACKGROUND = ("setpriv", "--pdeathsig", "TERM", "nice", "-n", "10")
"""The begin of the command of a build: it gives way to others, and ends with the process that started it."""
NOT_BUILT = "it is not built"
"""The failure of a part that a node without builds has not."""
_END_SECONDS = 5.0
_POLL_SECONDS = 0.2
_SAID_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Part:
    """One part: `find` returns it or None, `make` blocks until it is built and raises BuildError."""

    name: str
    title: str
    find: Callable[[Path], Path | None]
    make: Callable[[Path], Path]
    is_needed: Callable[[], bool] = lambda: True


def _fetch_linux(cache: Path) -> Path:
    try:
        return fetch(cache)
    except NoLinuxError as error:
        raise BuildError(str(error)) from error


SSH = Part("ssh", "ssh between kernels", find_programs, build_programs)
PYTHON = Part("python", "Python for code", find_runtime, build_runtime)
LINUX = Part(
    "linux", "Linux for virtual machines", find_fetched, _fetch_linux, lambda: bool(shutil.which("qemu-system-x86_64"))
)
PARTS = (SSH, PYTHON, LINUX)


def make(part: Part, cache: Path = CACHE, *, is_locked: bool = False) -> Path:
    """Returns the path of a part; it is built if it is not there yet, by one process of the machine at a time.
    Blocks for minutes. `is_locked`: the caller's parent holds the lock. Raises BuildError.
    """
    if (path := part.find(cache)) is not None:
        return path
    with contextlib.nullcontext() if is_locked else _lock(part, cache) as lock:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        return part.find(cache) or part.make(cache)


@contextlib.contextmanager
def _lock(part: Part, cache: Path) -> Iterator[int]:
    """Yields a descriptor of the part's lock, not locked yet; a lock ends with it. Raises BuildError."""
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(cache / f".{part.name}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BuildError(f"{cache} cannot be written: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class NodeBuilds:
    """The builds of one node. All methods belong on one event loop."""

    def __init__(
        self,
        cache: Path = CACHE,
        *,
        parts: Sequence[Part] = PARTS,
        builds: bool = True,
        changed: Callable[[Part], None] | None = None,
    ) -> None:
        """Builds nothing yet, and without `builds` never: it waits for the builds of others then. `changed` is called
        when the build of a part begins, and when it has ended.
        """
        self._cache = cache
        self._parts = parts
        self._builds = builds
        self._changed = changed or (lambda _: None)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, str] = {}

    async def begin(self) -> None:
        """Begins to build every part that is missing and that this node has a use for."""
        for part in self._parts:
            missing = part.is_needed() and await asyncio.to_thread(part.find, self._cache) is None
            if missing and (self._builds or await asyncio.to_thread(_is_locked, part, self._cache)):
                self._begin(part)

    async def close(self) -> None:
        """Ends the builds in progress."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def in_progress(self, part: Part) -> bool:
        """Returns whether the part is being built now."""
        return part.name in self._tasks

    def failure(self, part: Part) -> str:
        """Returns why the last build of a part failed; empty when none did."""
        return self._failures.get(part.name, "")

    async def ready(self, part: Part) -> Path | None:
        """Returns the path of a part, and waits while it is being built, which begins if need be; None when it cannot
        be built: `failure` says why.
        """
        if (path := await asyncio.to_thread(part.find, self._cache)) is not None:
            return path
        await asyncio.shield(self._begin(part))
        return await asyncio.to_thread(part.find, self._cache)

    def _begin(self, part: Part) -> asyncio.Task[None]:
        if (task := self._tasks.get(part.name)) is None:
            task = self._tasks[part.name] = asyncio.create_task(self._build(part), name=f"build {part.name}")
            self._changed(part)
        return task

    async def _build(self, part: Part) -> None:
        _log.info("%s: not there yet; it is built now, once, in the background", part.title)
        try:
            failure = await self._make(part)
        except BuildError as error:
            failure = str(error)
        finally:
            del self._tasks[part.name]
        if failure:
            _log.warning("%s cannot be built: %s", part.title, failure)
            self._failures[part.name] = failure
        else:
            _log.info("%s: built", part.title)
            self._failures.pop(part.name, None)
        self._changed(part)

    async def _make(self, part: Part) -> str:
        """Builds a part or waits for another's build; returns why it failed, and nothing when it did not."""
        with _lock(part, self._cache) as lock:
            while not _try_lock(lock):  # noqa: ASYNC110  # another process has it
                await asyncio.sleep(_POLL_SECONDS)
            if await asyncio.to_thread(part.find, self._cache) is not None:
                return ""
            return await _run(part, self._cache) if self._builds else NOT_BUILT


def _is_locked(part: Part, cache: Path) -> bool:
    if not (cache / f".{part.name}.lock").exists():
        return False
    try:
        with _lock(part, cache) as lock:
            return not _try_lock(lock)
    except BuildError:
        # Of a directory that cannot be written, the build of another would be no use.
        return False


async def _run(part: Part, cache: Path) -> str:
    """Builds a part in a process of its own; returns why it failed, and nothing when it did not."""
    command = (
        *module_command("retinue.agent.main"),
        *("build", part.name, "--locked", "--directory", str(cache)),
    )
    try:
        process = await asyncio.create_subprocess_exec(
            *IN_BACKGROUND,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return str(error)
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            await end(process)
    if process.returncode == 0:
        return ""
    text = said[-_SAID_BYTES:].decode(errors="replace").rpartition("Error: ")[2].strip()
    return text or f"the build ended with {process.returncode}"


async def end(process: asyncio.subprocess.Process) -> None:
    """Ends a build, which leads its session, with all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
                return
