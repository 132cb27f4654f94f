"""Memory of a daemon that runs for months."""

from __future__ import annotations

import contextlib
import ctypes
import gc

# mallopt(3), of the GNU C library.
_M_ARENA_MAX = -8
_ARENAS = 2


def prepare() -> None:
    """Prepares the process before it starts threads: what is loaded stays, and threads share the allocator's arenas.

    By default each thread may get an arena of its own, up to eight a core. What a thread frees stays in its arena, so that
    resident memory follows the number of threads that ever did something large, and not what is in use.
    """
    with contextlib.suppress(AttributeError):  # other C libraries have no arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    # Looking through it again and again would hold up everything for tenths of a second.
    gc.collect()
    gc.freeze()
