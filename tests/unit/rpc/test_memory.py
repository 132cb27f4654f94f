"""Memory of a daemon: threads share the allocator's arenas, free pages go back to the system,
but not those of each message.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

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


# Frees what lies between blocks in use, and prints whether few pages are resident then; where a thread returns them,
# once it has.
_FREEING = """
import sys, time
from pathlib import Path
from retinue.rpc import memory

memory._TRIM_SECONDS = 0.05
if sys.argv[1] == "prepared":
    memory.prepare()

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

before = resident()
blocks = [(bytes(60_000), bytes(1_000)) for _ in range(2_000)]
full = resident() - before
kept = [small for _, small in blocks]
del blocks
end = time.monotonic() + float(sys.argv[2])
while resident() - before > full / 2 and time.monotonic() < end:
    time.sleep(0.05)
print(resident() - before <= full / 2)
"""


@pytest.mark.parametrize(("how", "returned", "patience"), [("prepared", "True", NEVER), ("default", "False", 0.0)])
def test_free_pages_go_back_to_the_system(how: str, returned: str, patience: float) -> None:
    command = [sys.executable, "-c", _FREEING, how, str(patience)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == returned


# Copies a large message again and again, and prints whether the kernel had to give a page for each of its pages.
_COPYING = """
import resource, sys
from retinue.rpc import memory

if sys.argv[1] == "prepared":
    memory.reuse_freed()
view = memoryview(bytes(512 * 1024))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    data = b"".join((b"prefix", bytes(view)))
    del data
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before > 200 * 64)
"""


@pytest.mark.parametrize(("how", "mapped"), [("prepared", "False"), ("default", "True")])
def test_large_messages_use_memory_again(how: str, mapped: str) -> None:
    command = [sys.executable, "-c", _COPYING, how]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == mapped


# Loads a little between the two, and prints what the collector does then.
_LOADING = """
import gc
from retinue.rpc import memory

memory.load()
rested = not gc.isenabled()
memory.prepare()
print(rested, gc.isenabled(), gc.get_freeze_count() > 1_000, gc.get_threshold()[0] > 700)
"""


def test_the_collector_rests_until_all_is_loaded_and_not_longer() -> None:
    ended = subprocess.run([sys.executable, "-c", _LOADING], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True"] * 4
