"""Which node runs an image of which platform."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

from retinue.agent.docker.image_platform import MACHINES, NODES, emulated_machine, unfit_platform, wrong_platform

if TYPE_CHECKING:
    from pathlib import Path

QEMU = """enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: OCF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""


@pytest.mark.parametrize(
    ("system", "machine", "node", "emulated", "words"),
    [
        ("linux", "amd64", "x86_64", (), ""),
        ("", "", "x86_64", (), ""),
        ("unknown", "unknown", "x86_64", (), ""),
        ("linux", "386", "x86_64", (), ""),
        ("linux", "arm", "aarch64", (), ""),
        ("linux", "arm64", "aarch64", (), ""),
        ("linux", "s390x", "s390x", (), ""),
        ("linux", "arm64", "x86_64", (MACHINES["arm64"],), ""),
        (
            "linux",
            "arm64",
            "x86_64",
            (),
            "it is for linux/arm64, and this node is linux/amd64; `--arch aarch64` places it on such a node",
        ),
        (
            "",
            "riscv64",
            "aarch64",
            (),
            "it is for linux/riscv64, and this node is linux/arm64; `--arch riscv64` places",
        ),
        ("windows", "amd64", "x86_64", (), "it is for windows/amd64, and this node is linux/amd64"),
        ("windows", "amd64", "x86_64", (MACHINES["amd64"],), "it is for windows/amd64"),
        (
            "linux",
            "amd64",
            "aarch64",
            (),
            "it is for linux/amd64, and this node is linux/arm64; `--arch x86_64` places",
        ),
    ],
)
def test_the_platform_of_an_image(system: str, machine: str, node: str, emulated: tuple[int, ...], words: str) -> None:
    found = wrong_platform(system, machine, node, emulated)
    assert found.startswith(words)
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    ("handler", "machine"),
    [
        (QEMU, MACHINES["arm64"]),
        (QEMU.replace("enabled", "disabled"), None),
        (QEMU.replace("offset 0", "offset 2"), None),
        (QEMU.replace("7f454c46", "7f454c47"), None),
        (QEMU.replace("0200b700", "02"), None),
        (QEMU.replace("7f454c46020101", "7f454c46020201").replace("0200b700", "00020016"), MACHINES["s390x"]),
        ("enabled\ninterpreter /usr/bin/jar\nflags: \nextension .jar\n", None),
        ("enabled", None),
        ("", None),
        (QEMU.replace("magic 7f", "magic zz"), None),
    ],
)
def test_the_machine_of_an_emulator(handler: str, machine: int | None) -> None:
    assert emulated_machine(handler) == machine


def test_emulators_of_this_node(tmp_path: Path) -> None:
    own = NODES.get(platform.machine(), platform.machine())
    other = "arm64" if own != "arm64" else "amd64"
    assert not unfit_platform("linux", own, tmp_path)
    assert unfit_platform("linux", other, tmp_path)
    (tmp_path / "qemu-other").write_text(QEMU if other == "arm64" else QEMU.replace("b700", "3e00"))
    (tmp_path / "status").write_text("enabled\n")
    assert not unfit_platform("linux", other, tmp_path)
