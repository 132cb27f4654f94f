"""The platform that an image is for, and whether this node runs it: by itself, or by an emulator.

Engines start whatever they have: the first program of an image for another machine then fails with words that fit no
image, or a shell reads it as a script.
"""

from __future__ import annotations

import contextlib
import platform
from typing import TYPE_CHECKING

from retinue.agent.docker.fetched_images import on_host

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

HANDLERS = "/proc/sys/fs/binfmt_misc"
"""Where Linux shows what it runs by a program, emulators of other machines among them."""
MACHINES = {
    "386": 3,
    "amd64": 62,
    "arm": 40,
    "arm64": 183,
    "loong64": 258,
    "mips64le": 8,
    "ppc64le": 21,
    "riscv64": 243,
    "s390x": 22,
}
"""The numbers of machines in the header of their programs (ELF's `e_machine`), by their names in images."""
NODES = {"x86_64": "amd64", "i686": "386", "aarch64": "arm64", "armv7l": "arm", "loongarch64": "loong64"}
"""The names of machines in images by those that Linux has for them, where they differ."""
OTHER_SYSTEMS = frozenset({"windows", "darwin", "freebsd"})
_ALSO_RUN = {"amd64": ("386",), "arm64": ("arm",)}
_ELF, _BIG_ENDIAN, _HEADER_SIZE = b"\x7fELF", 2, 20


def wrong_platform(system: str, machine: str, node: str, emulated: Collection[int] = ()) -> str:
    """Returns in words that an image is for another platform than the node's; empty when it may run there. Pure.

    `system` and `machine` are the image's, `node` is the node's machine as Linux has it, `emulated` are numbers of
    MACHINES that the node emulates. An image that says nothing, or a name of its own, may run anywhere.
    """
    own = NODES.get(node, node)
    foreign = system in OTHER_SYSTEMS
    runs = {own, *_ALSO_RUN.get(own, ())}
    if not foreign and (machine in runs or MACHINES.get(machine) in {None, *emulated}):
        return ""
    words = f"it is for {system or 'linux'}/{machine}, and this node is linux/{own}"
    if foreign:
        return words
    asked = next((name for name, other in NODES.items() if other == machine), machine)
    return f"{words}; `--arch {asked}` places it on such a node"


def emulated_machine(handler: str) -> int | None:
    """Returns the number of the machine whose programs a handler of binfmt_misc runs, from its file;
    None when it runs others. Pure.
    """
    lines = handler.splitlines()
    values = dict(line.partition(" ")[::2] for line in lines)
    try:
        magic = bytes.fromhex(values.get("magic", ""))
    except ValueError:
        return None
    if lines[:1] != ["enabled"] or values.get("offset") != "0" or len(magic) < _HEADER_SIZE:
        return None
    if not magic.startswith(_ELF):
        return None
    return int.from_bytes(magic[18:_HEADER_SIZE], "big" if magic[5] == _BIG_ENDIAN else "little")


def unfit_platform(system: str, machine: str, handlers: Path | None = None) -> str:
    """Returns `wrong_platform` for this node, with the emulators that it has. Blocks."""
    node = platform.machine()
    if not wrong_platform(system, machine, node):
        return ""
    emulated = set[int | None]()
    for handler in (handlers or on_host(HANDLERS)).glob("*"):
        with contextlib.suppress(OSError):
            emulated.add(emulated_machine(handler.read_text(errors="replace")))
    return wrong_platform(system, machine, node, [found for found in emulated if found is not None])
