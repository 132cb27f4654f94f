"""Rules of the kernel's packet filter, by libnftables inside this process: one transaction a call,
and no child process.

A process that serves gRPC must not fork for every change, and the library that `nft` is a shell around takes the same
text in a fraction of the time. Everything here blocks for about a millisecond, and acts in the calling thread's network
namespace.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from retinue.agent.network.errors import NetworkError
from retinue.rpc import failpoints

_LIBRARY = "libnftables.so.1"
# Leaves the elements of sets out of lists (NFT_CTX_OUTPUT_TERSE).
_TERSE = 1 << 11
# The library's parser keeps state of its own; nothing is won by two threads at once.
_lock = threading.Lock()


@failpoints.blocking("nftables", NetworkError, sites=True)
def run(commands: str, *, terse: bool = False) -> str:
    """Does what the commands of `nft` say, all or nothing, and answers what they list. Raises NetworkError."""
    library = _load()
    with _lock:
        context = library.nft_ctx_new(0)
        if not context:
            raise NetworkError("the packet filter cannot be reached: no netlink socket")
        try:
            library.nft_ctx_buffer_output(context)
            library.nft_ctx_buffer_error(context)
            library.nft_ctx_output_set_flags(context, _TERSE if terse else 0)
            failed = library.nft_run_cmd_from_buffer(context, commands.encode())
            output: bytes = library.nft_ctx_get_output_buffer(context)
            message: bytes = library.nft_ctx_get_error_buffer(context)
        finally:
            library.nft_ctx_free(context)
    if failed:
        raise NetworkError(f"the packet filter refused: {_first_line(message)}")
    return output.decode(errors="replace")


def tables() -> set[str]:
    """Returns the names of the tables of family `inet`. Raises NetworkError."""
    words = (line.split() for line in run("list tables inet").splitlines())
    return {word[2] for word in words if len(word) == 3}  # noqa: PLR2004  # "table inet NAME"


@functools.cache
def _load() -> Any:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise NetworkError(f"{_LIBRARY} is missing (Debian: nftables)") from error
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_new.argtypes = [ctypes.c_uint32]
    for name in ("nft_ctx_buffer_output", "nft_ctx_buffer_error", "nft_ctx_free"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    for name in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
        getattr(library, name).restype = ctypes.c_char_p
    library.nft_ctx_output_set_flags.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return library


def _first_line(message: bytes) -> str:
    lines = message.decode(errors="replace").splitlines()
    return lines[0] if lines else "no reason was given"
