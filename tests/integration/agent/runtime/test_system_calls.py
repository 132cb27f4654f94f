"""What kernels are denied of system calls, whichever way a process came to run in one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.inside.exec_session import Attachment
from retinue.agent.kernel.core.frames import Start
from tests.integration.agent.docker.engine import install
from tests.integration.agent.runtime.beside import members, ran
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract

PROBE = "/home/work/probe"
ANSWERS = {
    "fallocate": 0,
    "punch": 0,
    "truncate": 0,
    "keyctl": errno.EPERM,
    "add_key": errno.EPERM,
    "io_uring": errno.EPERM,
    "clone3": errno.ENOSYS,
    "unshare": errno.EPERM,
    "bpf": errno.EPERM,
    "vsock": errno.EAFNOSUPPORT,
    "alg": errno.EAFNOSUPPORT,
    "unix": 0,
    "inet": 0,
    "netlink": 0,
}
COMPATIBLE = {
    "keyctl_32": errno.EPERM,
    "io_uring_32": errno.EPERM,
    "socketcall_32": 0,
}
"""Answers to 32-bit programs, which containers may run and native processes may not."""


def answers(contract: Contract) -> dict[str, int]:
    expected = dict(ANSWERS)
    native = contract.kind.name == "process"
    if platform.machine() == "x86_64":
        expected |= dict.fromkeys(COMPATIBLE, errno.ENOSYS) if native else COMPATIBLE
    return expected


def parse(printed: str) -> dict[str, int]:
    *lines, last = printed.splitlines()
    assert last == "over", printed
    return {name: int(number) for name, number in map(str.split, lines)}


def statuses(contract: Contract) -> list[str]:
    """What Linux says of each process in the kernel."""
    found = []
    for pid in members(contract):
        # It may have ended meanwhile.
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/status").read_text())
    return found


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    install()
    program = tmp_path_factory.mktemp("probe") / "probe"
    source = Path(__file__).with_name("system_calls.c")
    subprocess.run(["gcc", "-static", "-no-pie", "-O1", "-Wall", "-Werror", "-o", program, source], check=True)  # noqa: S607
    return program.read_bytes()


@pytest.mark.attack("system-calls")
async def test_every_way_into_a_kernel_has_the_filter(contract: Contract, probe: bytes) -> None:
    """The command, a command beside it, and a service."""
    backend = await contract.held(contract.spec("k", "sh", "-c", f"{PROBE} command; exec sleep 1000"))
    home = contract.place.directory / "scratch" / "k.1"
    (home / "probe").write_bytes(probe)
    (home / "probe").chmod(0o755)
    await backend.start("k.1")
    assert parse(await contract.until_printed("k.1", "over\n")) == answers(contract)

    beside = await ran(contract, PROBE, "beside")
    assert parse(beside.output.decode()) == answers(contract)

    wire = await backend.kernel("k.1").exec()
    attachment = Attachment(wire)
    try:
        log = "/home/work/service.log"
        assert await attachment.start_apart(Start((PROBE, "service"), wire.environment, wire.directory), log)
    finally:
        await attachment.close()
    await eventually(lambda: (home / "service.log").read_text().endswith("over\n"))
    assert parse((home / "service.log").read_text()) == answers(contract)
    # The first process is what ssh and everything else comes from.
    inside = await asyncio.to_thread(statuses, contract)
    assert inside
    assert all("Seccomp:\t2\n" in status for status in inside)
    if contract.kind.name == "docker":
        assert all("Seccomp_filters:\t2\n" in status for status in inside)
    assert backend.observe()["k.1"].phase is Phase.RUNNING
