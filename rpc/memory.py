"""Memory of a daemon that runs for months."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# mallopt(3), of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_ARENAS = 2
_TRIM_SECONDS = 20.0
_LARGEST, _KEPT = 4 << 20, 16 << 20
# Calls that begin and end keep thousands of objects alive in turns: by default, 700 more than before are looked through
# each time, which takes a fourth of the processor time of a busy manager, and finds hardly any cycles.
_THRESHOLDS = (10_000, 20, 20)


def load() -> None:
    """Has the collector rest until `prepare`: what a daemon loads stays, and to look through it takes a fifth of the
    processor time of a start.
    """
    gc.disable()


def prepare() -> None:
    """Prepares the process before it starts threads: what is loaded stays, and threads share the allocator's arenas.

    By default each thread may get an arena of its own, up to eight a core. What a thread frees stays in its arena, so
    that resident memory follows the number of threads that ever did something large, and not what is in use. Nor does
    it return pages between blocks in use, so that resident memory stays at its highest ever;
    a thread returns them every 20 seconds.
    """
    with contextlib.suppress(AttributeError):  # other C libraries have no arenas, and return pages by themselves
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
        reuse_freed()
        threading.Thread(target=_trim_for_ever, args=[ctypes.CDLL(None).malloc_trim], name="trim", daemon=True).start()
    gc.set_threshold(*_THRESHOLDS)
    gc.freeze()
    gc.enable()


def keep_what_is_there() -> None:
    """Has the collector never look again at what there is by now: for after the start, since much is loaded with it.

    Looking through it again and again would hold up everything for tenths of a second.
    """
    gc.collect()
    gc.freeze()


def reuse_freed() -> None:
    """Has blocks of up to 4 MiB use memory that was freed before, of which up to 16 MiB are kept for that.

    By default, blocks from 128 KiB on are mapped each time, or returned at once when they are freed: the kernel then
    clears each of their pages, which takes ten times as long as to copy into them.
    """
    with contextlib.suppress(AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)


def _trim_for_ever(trim: Callable[[int], int]) -> None:
    while True:
        time.sleep(_TRIM_SECONDS)
        trim(0)
