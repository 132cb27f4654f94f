"""What a machine's command finds inside: memory, processors, directories of the node; and what is left after it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from retinue.agent.attempts import Mount, Phase
from retinue.agent.host.processes import PROC
from tests.integration.agent.vm.guests import machines
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.integration.agent.vm.conftest import Vms

SCRIPT = """
cat /data/deep/in/file /home/work/shared/file
(echo x > /data/deep/in/new) 2>/dev/null || echo read-only
echo written > /home/work/shared/new && echo wrote
nproc
awk '/^MemTotal/ { print ($2 > 110000 && $2 < 163840) }' /proc/meminfo
ls /home /root
ls /sys/bus/virtio/devices | wc -l
grep -c . /proc/net/dev
ulimit -Sn; ulimit -Hn
python3 -c "import socket; socket.create_server(('127.0.0.1', 80)); print('listens')"
python3 -c "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); print('asks')"
"""


async def test_what_a_command_finds(vms: Vms, tmp_path_factory: pytest.TempPathFactory) -> None:
    shared: Path = tmp_path_factory.mktemp("shared")
    (shared / "inner").mkdir(mode=0o777)
    (shared / "inner").chmod(0o777)
    (shared / "inner/file").write_text("content\n")
    mounts = (
        Mount(str(shared), "inner", "/data/deep/in"),
        Mount(str(shared), "inner", "/home/work/shared", writable=True),
    )
    wanted = vms.spec("k", "sh", "-c", SCRIPT, mounts=mounts, slots={"cpu": 1500, "mem": 256 << 20})
    runtime = await vms.held(wanted)
    # QEMU's user is the kernel's own, and it has no rights.
    init = runtime.kernel("k.1").fence_target()
    assert init is not None
    (qemu,) = machines(vms, "k.1")
    status = dict(line.split(":\t", 1) for line in (PROC / f"{qemu}/status").read_text().splitlines() if ":\t" in line)
    assert status["Uid"].split() == ["70000"] * 4
    assert (status["CapEff"], status["CapBnd"], status["NoNewPrivs"], status["Seccomp"]) == (
        "0" * 16,
        "0" * 16,
        "1",
        "2",
    )
    await runtime.start("k.1")
    observed = await vms.until("k.1", Phase.EXITED)
    assert observed.exit_code == 0, vms.printed("k.1")
    lines = ["content", "content", "read-only", "wrote", "2", "1", "/home:", "work", "", "/root:", "4", "3"]
    # As in a container.
    lines += ["65536", "65536", "listens", "asks"]
    assert vms.printed("k.1").splitlines() == lines
    # What was written stays, and nothing else of it.
    assert (shared / "inner/new").read_text() == "written\n"
    await runtime.remove("k.1")
    assert not vms.left()
    assert str(shared) not in (PROC / "self/mountinfo").read_text()


CLOCK = "while :; do date +%s%N; until [ -e ~/next ]; do sleep 0.1; done; rm ~/next; done"


async def test_the_time_is_that_of_the_node(vms: Vms) -> None:
    """All kernels of a session have the same, whatever they are, and from the beginning on."""
    runtime = await vms.held(vms.spec("k", "sh", "-c", CLOCK))
    released = time.time_ns()
    await runtime.start("k.1")
    for number in range(4):
        await eventually(partial(has_lines, vms, number + 1))
        assert released < int(vms.printed("k.1").splitlines()[-1]) < time.time_ns()
        (vms.place.directory / "scratch/k.1/next").touch()
    await runtime.kill("k.1")
    await vms.until("k.1", Phase.EXITED)
    await runtime.remove("k.1")
    assert not vms.left()


def has_lines(vms: Vms, count: int) -> bool:
    return vms.printed("k.1").count("\n") == count


async def test_what_cannot_be_started_says_why(vms: Vms, tmp_path: Path) -> None:
    runtime = await vms.open()
    for name, values, reason, words in (
        ("small", {"slots": {"mem": 128 << 20}}, "START_FAILED", "at least mem=224m"),
        ("mount", {"mounts": (Mount(str(tmp_path), "none", "/data"),)}, "MOUNT_REFUSED", "no such directory"),
        ("image", {"image": "some/image:1"}, "IMAGE_UNSUPPORTED", "no Docker engine"),
        ("gpu", {"slots": {"cuda.device": 1000}}, "DEVICE_MISSING", "no GPUs"),
        ("slow", {"slots": {"cpu": 10, "mem": 256 << 20}}, "START_FAILED", "did not boot within 1 s"),
    ):
        if name == "slow":
            runtime = await vms.open(boot_timeout=1.0)
        await runtime.prepare(vms.spec(name, "true", **values), "")
        failed = await vms.until(f"{name}.1", Phase.CREATED, Phase.FAILED)
        assert (failed.phase, failed.reason) == (Phase.FAILED, reason), failed
        assert words in failed.message, failed
        await runtime.remove(f"{name}.1")
    assert not vms.left()
