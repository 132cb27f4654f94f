"""The standard streams of the program: there, whatever it was started with, and able to take any text."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import select
import sys

_ERRORS = "retinue.plain"
# Those of our own pictures, each by one character, so that columns stay columns.
_SUBSTITUTES = str.maketrans("…─│└├┌┐┘┤→↔·●○✓✕", "~-|`|..'|>-.*o+x")
# What writing to standard output fails with, and not much else.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def prepare() -> None:
    """Makes the streams fit for output: those that are missing are the null device, and what the encoding of one lacks
    is replaced.
    """
    _open_missing()
    codecs.register_error(_ERRORS, _replacement)
    for stream in (sys.stdout, sys.stderr):
        # One that was put in place of another cannot always be changed.
        with contextlib.suppress(OSError):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=_ERRORS)


def takes_all() -> bool:
    """Returns whether standard output can show every character."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "").startswith("utf")


def drop_output() -> None:
    """Drops output that is not written yet: the interpreter must not try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def drop_unwritable() -> None:
    """Drops what the standard streams do not take, now and from here on: the interpreter writes what is left at exit,
    and ends with 120 when it cannot.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            descriptor = stream.fileno()
            try:
                stream.flush()
                closed = _is_closed(descriptor)
            except OSError:
                closed = True
            if closed:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _is_closed(descriptor: int) -> bool:
    """Returns whether nobody reads any more what is written: a closed terminal, a pipe without its other end."""
    if not hasattr(select, "poll"):
        return False
    look = select.poll()
    look.register(descriptor, 0)
    return any(found & (select.POLLHUP | select.POLLERR) for _, found in look.poll(0))


def is_of_output(error: OSError) -> bool:
    """Returns whether an error is that of a stream that takes no more."""
    return error.filename is None and error.errno in _OF_OUTPUT


def _open_missing() -> None:
    """Opens the null device for each missing standard stream: no file or connection gets its number,
    and it reads as empty.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def _replacement(error: UnicodeError) -> tuple[str, int]:
    """Returns what is printed in place of characters that an encoding lacks: a plain character for those of pictures,
    and escapes as JSON has them for those of others.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    if (plain := character.translate(_SUBSTITUTES)) != character:
        return plain
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
