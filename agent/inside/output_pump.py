"""Carries what a kernel prints from its pipes into its output file, by a process of its own on the node
(`agent/kernel/pump.c`).

A kernel whose standard output has a pipe of its own prints errors to the other one, and an index says which bytes came
from which (`streams.py`). The kernel has the pipes only: it can neither reserve space by its output file nor cut it.
The pump outlives the agent, and ends when nothing is left that could print. It holds a lock on the file meanwhile, so
that a later agent knows whether there is one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUTPUT, INDEX, PIPE, STDOUT_PIPE = "output.log", "output.streams", "output", "output.stdout"
"""Names in an attempt's directory."""
START_TIMEOUT = 10.0
DRAIN_POLL = 0.002


def make_pipe(directory: Path, mode: int, name: str = PIPE) -> Path:
    """Makes a pipe of an attempt, if it is not there. The directory around it is closed to all but root. Blocks."""
    path = directory / name
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    path.chmod(mode)
    return path


@contextlib.contextmanager
def pumping(program: Path, directory: Path, limit: int) -> Iterator[None]:
    """Starts a pump for an attempt, unless there is one. It continues while this lasts or any other process has the
    pipe open for writing.

    Blocks; raises OSError.
    """
    # A pipe that no process has open for writing is at its end.
    reading = os.open(directory / PIPE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.ExitStack() as stack:
        with contextlib.ExitStack() as until_started:
            until_started.callback(os.close, reading)
            stack.callback(os.close, os.open(directory / PIPE, os.O_WRONLY | os.O_CLOEXEC))
            file = os.open(directory / OUTPUT, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            until_started.callback(os.close, file)
            if _locked(file):
                _start(program, limit, reading, file, *_streams(directory, until_started))
        yield


def _streams(directory: Path, until_started: contextlib.ExitStack) -> tuple[int, ...]:
    """Opens the pipe of standard output and the index, if there is such a pipe."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        stdout = os.open(directory / STDOUT_PIPE, flags | os.O_NONBLOCK)
    except FileNotFoundError:
        return ()
    until_started.callback(os.close, stdout)
    index = os.open(directory / INDEX, flags | os.O_CREAT, 0o600)
    until_started.callback(os.close, index)
    return stdout, index


def _start(program: Path, limit: int, reading: int, file: int, *streams: int) -> None:
    command = [str(program), str(reading), str(file), str(limit), *map(str, streams)]
    try:
        subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(reading, file, *streams),
            env={},
            cwd="/",
            check=True,
            timeout=START_TIMEOUT,
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"the pump of the output cannot be started: {error}") from error


def revive(program: Path, directory: Path, limit: int) -> None:
    """Starts a pump where one is missing: it was killed, and what prints would wait for ever. Blocks;
    raises OSError.
    """
    with contextlib.suppress(FileNotFoundError), pumping(program, directory, limit):
        pass


def drain(directory: Path, timeout: float) -> bool:
    """Waits until all that was printed is in the file; False when that takes too long. Blocks."""
    try:
        file = os.open(directory / OUTPUT, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        deadline = time.monotonic() + timeout
        while not _locked(file):
            if time.monotonic() > deadline:
                return False
            time.sleep(DRAIN_POLL)
    finally:
        os.close(file)
    return True


def _locked(file: int) -> bool:
    """Returns whether the lock was free, and is this descriptor's now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
