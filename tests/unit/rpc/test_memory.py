"""Memory of a daemon: threads share the allocator's arenas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Sixteen threads use the allocator at the same time, and then stay. Prints how many arenas there are.
_PROGRAM = """
import ctypes, re, sys, threading
from pathlib import Path
from retinue.rpc import memory

if sys.argv[1] == "prepared":
    memory.prepare()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
libc.free.argtypes, libc.fclose.argtypes = [ctypes.c_void_p], [ctypes.c_void_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
together, stay = threading.Barrier(17), threading.Event()

def work():
    libc.free(libc.malloc(1000))
    together.wait()
    stay.wait()

for _ in range(16):
    threading.Thread(target=work, daemon=True).start()
together.wait()
out = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, out)
libc.fclose(out)
print(len(re.findall("<heap nr=", Path(sys.argv[2]).read_text())))
"""


@pytest.mark.parametrize(("how", "few"), [("prepared", True), ("default", False)])
def test_threads_share_arenas(tmp_path: Path, how: str, few: bool) -> None:
    command = [sys.executable, "-c", _PROGRAM, how, str(tmp_path / "info")]
    arenas = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (arenas <= 2) == few
