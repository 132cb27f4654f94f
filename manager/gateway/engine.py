"""The program that speaks HTTP and TLS: an Envoy as a child without rights, started again whenever it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import json_format

from retinue.manager.store.postgres.embedded import account_of

if TYPE_CHECKING:
    from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap

_log = logging.getLogger(__name__)

_LAUNCHER = Path(__file__).with_name("launcher.py")
_STOP_SECONDS = 3.0
# What ends sooner after its start waits before the next.
_STEADY_SECONDS, _PAUSE_SECONDS = 5.0, 1.0
_LONGEST_LINE = 64 * 1024
_MAX_WORKERS = 4
_DRAIN_SECONDS = 1
_FIRST_FREE_PORT = 1024


def account(directory: Path) -> tuple[int, int] | None:
    """User and group that a manager which is root gives the program, by its data directory; None: the manager's own.

    They are numbers that nothing else runs under: neither an account's nor the embedded database's.
    """
    if os.geteuid() != 0:
        return None
    database = account_of(directory / "postgres")
    candidates = (account_of(directory / f"gateway-{number}") for number in itertools.count())
    found = next(candidate for candidate in candidates if candidate != database)
    return found.uid, found.gid


class Engine:
    """The child; belongs on one event loop."""

    def __init__(self, path: Path, configuration: Bootstrap, port: int, owner: tuple[int, int] | None) -> None:
        """`configuration` is the bootstrap; one that listens at a `port` below 1,024 keeps the right to that,
        and no other.
        """
        self._path = path
        self._configuration = json_format.MessageToJson(configuration).encode()
        self._port = port
        self._owner = owner
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Its process while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Runs it, again and again, until cancelled; it is gone then."""
        try:
            while True:
                began = time.monotonic()
                try:
                    await self._once()
                except OSError as error:
                    _log.error("the gateway's engine does not start: %s", error)
                if time.monotonic() - began < _STEADY_SECONDS:
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Asks it to end, or ends it; returns when it is gone."""
        process = self._process
        if process is None:
            return
        for end in (process.terminate, process.kill):
            with contextlib.suppress(ProcessLookupError):
                end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
                    return

    async def _once(self) -> None:
        """One run, from its start to its end."""
        with contextlib.ExitStack() as stack:
            binary = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, binary)
            # It holds a secret: every user can read arguments, and there is no file.
            bootstrap = os.memfd_create("bootstrap")
            stack.callback(os.close, bootstrap)
            os.write(bootstrap, self._configuration)
            user, group = self._owner or (-1, -1)
            privileged = int(self._owner is not None and self._port < _FIRST_FREE_PORT)
            workers = min(os.cpu_count() or 1, _MAX_WORKERS)
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(_LAUNCHER)),
                *map(str, (binary, os.getpid(), user, group, privileged)),
                *("envoy", "-c", f"/dev/fd/{bootstrap}", "--concurrency", str(workers)),
                *("--disable-hot-restart", "--log-level", "warning"),
                # Connections of a listener that is removed end so many seconds later.
                *("--drain-time-s", str(_DRAIN_SECONDS)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(binary, bootstrap),
                # It keeps no files: no home, and nothing of the manager's own settings.
                env={"PATH": os.defpath, "HOME": "/nonexistent"},
                limit=_LONGEST_LINE,
            )
        assert process.stderr is not None  # noqa: S101  # a pipe was asked for
        await _log_lines(process.stderr)
        _log.error("the gateway's engine ended with %d; starting it again", await process.wait())


async def _log_lines(stream: asyncio.StreamReader) -> None:
    """Passes on what it says, up to its end."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            # Too long for a line: what was read of it is gone, the rest follows.
            continue
        if not line:
            return
        _log.warning("envoy: %s", line.decode(errors="replace").rstrip())
