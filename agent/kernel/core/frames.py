"""Frames between the agent and `attach.c`: a letter, four bytes of length, and so many bytes. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER = struct.Struct(">cI")
NUMBER = struct.Struct(">I")
_SIZE = struct.Struct(">HH")
WINDOW = 64 * 1024
"""Bytes of input that may be in flight without being reported as taken."""
LARGEST = 64 * 1024
"""Maximum bytes of a frame that comes from inside; more is a sign that another program is talking."""

STARTED, OUTPUT, ERRORS, TAKEN, EXITED, REFUSED, RUNNING = b"P", b"O", b"X", b"A", b"Q", b"F", b"U"


@dataclass(frozen=True, slots=True)
class Start:
    """A command to run inside a kernel; with a terminal of `size` rows and columns, or without one.

    An empty `directory` is where the helper was started; `environment` is added to what it has there. With `leaves`,
    processes that the command leaves behind live on, as long as the kernel; with `detached`, the command itself does,
    without input and output.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    size: tuple[int, int] | None = None
    leaves: bool = False
    detached: bool = False


def start_frame(start: Start) -> bytes:
    """Returns the first frame. Raises ValueError on a text that holds NUL."""
    rows, columns = start.size or (0, 0)
    variables = [f"{name}={value}" for name, value in start.environment.items()]
    manner = (start.size is not None) + 2 * start.leaves + 4 * start.detached
    texts = [str(manner), str(rows), str(columns), start.directory]
    texts += [str(len(start.command)), *start.command, *variables]
    if any("\0" in text for text in texts):
        raise ValueError("texts must not hold NUL")
    return frame(b"S", b"".join(text.encode(errors="surrogateescape") + b"\0" for text in texts))


def apart_frame(start: Start, log: str) -> bytes:
    """Returns the only frame for a command that runs once and survives, with its output in a file.
    Raises ValueError on a text that holds NUL.
    """
    variables = [f"{name}={value}" for name, value in start.environment.items()]
    texts = [log, start.directory, str(len(start.command)), *start.command, *variables]
    if any("\0" in text for text in texts):
        raise ValueError("texts must not hold NUL")
    return frame(b"D", b"".join(text.encode(errors="surrogateescape") + b"\0" for text in texts))


def input_frame(data: bytes) -> bytes:
    """Returns a frame with input for the command, within the window."""
    return frame(b"I", data)


def end_frame() -> bytes:
    """Returns the frame that ends the input."""
    return frame(b"E", b"")


def resize_frame(rows: int, columns: int) -> bytes:
    """Returns the frame that gives the terminal another size."""
    return frame(b"R", _SIZE.pack(rows, columns))


def signal_frame(number: int) -> bytes:
    """Returns the frame that signals the command's process group, or that in front on its terminal."""
    return frame(b"K", bytes((number,)))


def frame(kind: bytes, data: bytes) -> bytes:
    """Returns one frame."""
    return HEADER.pack(kind, len(data)) + data
