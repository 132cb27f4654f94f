"""The terminal that the program runs on: its state, and its use for a remote command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import termios
import threading
import tty
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PIECE = 32 * 1024
"""Most bytes read at a time."""
SMALLEST, LARGEST = 1, 1000
COLOURS = "COLORTERM"
"""Which colours it has besides those that TERM says; ssh passes TERM on by itself."""


def size() -> tuple[int, int]:
    """Rows and columns of the terminal, within what a manager takes."""
    try:
        columns, rows = os.get_terminal_size()
    except OSError:
        columns = rows = 0
    if not columns or not rows:
        # Variables are asked last: they may describe another terminal, and do not change with this one.
        columns, rows = shutil.get_terminal_size()
    return min(max(rows, SMALLEST), LARGEST), min(max(columns, SMALLEST), LARGEST)


def kind() -> dict[str, str]:
    """Returns the variables by which this terminal says what it is, without those that are not set."""
    return {name: value for name in ("TERM", COLOURS) if (value := os.environ.get(name))}


def in_foreground() -> bool:
    """Returns whether this process may draw on its terminal: False in the background of a shell. It may change at any
    time, by `fg`, `bg` and Ctrl-Z.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        # There is no terminal that a shell controls.
        return True
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return True
    finally:
        os.close(terminal)


@contextlib.contextmanager
def handed_over(descriptor: int) -> Iterator[None]:
    """Passes every key on as it is, Ctrl-C included; the terminal is as before at the end.
    Nothing to do if it is none.
    """
    if not os.isatty(descriptor):
        yield
        return
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def pieces(descriptor: int) -> AsyncIterator[bytes]:
    """Yields input, piece by piece, to its end; reads nothing ahead of the iterating task."""
    loop = asyncio.get_running_loop()
    arrivals: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = threading.Semaphore(0)

    def read() -> None:
        while wanted.acquire():
            try:
                data = os.read(descriptor, PIECE)
            except OSError:
                data = b""
            # The program may have ended by now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(arrivals.put_nowait, data)
            if not data:
                return

    # Not one of the loop's threads: it may wait for a key for ever, and must not hold up the program's end.
    threading.Thread(target=read, name="input", daemon=True).start()
    while True:
        wanted.release()
        data = await arrivals.get()
        if not data:
            return
        yield data
