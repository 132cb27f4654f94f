"""What every kind of kernel does in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.errors import KernelRuntimeError, UnknownAttemptError
from retinue.agent.host.users import UserRange
from retinue.rpc.core.output_stream import Stream
from tests.integration.agent.opened import HOSTS
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract

AT_ONCE = 4
POLITE = "trap 'echo late; exit 4' TERM; echo on; while :; do sleep 0.02; done"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("no-such-command",), 127),
        (("/etc/hostname",), 126),
        (("sh", "-c", "kill -SEGV $$"), 139),
        (("sh", "-c", "sleep 1000 & exit 5"), 5),
        (("sh", "-c", "setsid sleep 1000 & exit 6"), 6),
        (("a=b",), 127),
    ],
)
async def test_exit_codes(contract: Contract, command: tuple[str, ...], code: int) -> None:
    before = time.time()
    observed, output = await contract.ran(contract.spec("k", *command))
    assert (observed.exit_code, observed.reason) == (code, "EXITED")
    assert observed.start_time is not None
    assert observed.end_time is not None
    assert before - 1 < observed.start_time <= observed.end_time < time.time() + 1
    assert observed.log_size == len(output)
    if code == 127:
        assert "No such file" in output or "not found" in output


async def test_inside(contract: Contract) -> None:
    script = """
        env; cat /etc/hosts; hostname; pwd; id -u
        grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs):' /proc/self/status
        for file in /home/work/x /tmp/x /dev/shm/x; do echo >$file && echo wrote $file; done
        for file in /etc/hosts /etc/passwd /bin/x /sys/fs/cgroup/memory/x; do (echo >$file) 2>/dev/null && echo wrote $file; done
        cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' ' | sed 's/^/interface=/'
        cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv4/ping_group_range
        grep -v '^#' /etc/resolv.conf; ulimit -c; echo done
    """
    environment = {
        "BACKENDAI_CLUSTER_ROLE": "main",
        "STRANGE": "two\nlines \"$(id)\" 'x'",
        "LD_PRELOAD": "",
        "a_b": "1",
    }
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script, environment=environment))
    assert observed.exit_code == 0, output
    lines = output.splitlines()
    assert {"BACKENDAI_CLUSTER_ROLE=main", "STRANGE=two", "lines \"$(id)\" 'x'", "HOME=/home/work", "a_b=1"} <= {*lines}
    assert HOSTS in output
    *place, uid = lines[lines.index("10.1.2.3\tsub1") + 1 :][:3]
    assert place == ["main1", "/home/work"]
    assert int(uid) in UserRange()
    assert sum(line.startswith("Cap") and line.endswith("\t0000000000000000") for line in lines) == 5
    assert "NoNewPrivs:\t1" in lines
    assert [line for line in lines if line.startswith("wrote")] == [
        "wrote /home/work/x",
        "wrote /tmp/x",
        "wrote /dev/shm/x",
    ]
    assert [line for line in lines if line.startswith("interface=")] == ["interface=lo"]
    # Any port may be listened on.
    assert lines[-4:] == ["0", "0\t2147483647", "0", "done"]
    assert "nameserver" not in output


async def test_command_and_environment_are_taken_literally(contract: Contract) -> None:
    values = ["", "two words", "$HOME `id` \\ \"'", "two\nlines", "--", "-c", "ü"]
    observed, output = await contract.ran(contract.spec("k", "printf", "<%s>", *values))
    assert (observed.exit_code, output) == (0, "".join(f"<{value}>" for value in values))


async def test_gate_holds(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", "echo out"))
    with backend.kernel("k.1").network_attachment().opened() as namespace:
        assert os.fstat(namespace).st_ino != os.stat("/proc/self/ns/net").st_ino
    await backend.mark_attached("k.1")
    # The barrier stays closed while no agent runs, and the next agent can open it.
    await backend.close()
    assert contract.printed("k.1") == ""
    backend = await contract.open()
    observed = backend.observe()["k.1"]
    assert (observed.phase, observed.attached, observed.start_time) == (Phase.CREATED, True, None)
    await backend.start("k.1")
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.exit_code, contract.printed("k.1")) == (0, "out\n")


async def test_polite_end(contract: Contract) -> None:
    backend = await contract.started(contract.spec("k", "sh", "-c", POLITE))
    await contract.until_printed("k.1", "on\n")
    await backend.stop("k.1", NEVER)
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code, contract.printed("k.1")) == ("STOPPED", 4, "on\nlate\n")


@pytest.mark.parametrize(
    "values",
    [
        {"command": ("a\0b",)},
        {"command": ("x" * 300_000,)},
        {"environment": {"A": "x" * 300_000}},
        {"slots": {"mem": 4096}},
    ],
)
async def test_what_cannot_be_created_fails(contract: Contract, values: dict[str, object]) -> None:
    backend = await contract.open()
    await backend.prepare(contract.spec("k", **({"command": ("true",)} | values)), HOSTS)
    observed = backend.observe()["k.1"]
    assert (observed.phase, observed.reason, observed.exit_code) == (Phase.FAILED, "START_FAILED", None)
    assert len(observed.message) > 20
    assert "Errno" not in observed.message
    with pytest.raises(KernelRuntimeError):
        backend.kernel("k.1").network_attachment()
    await backend.remove("k.1")
    with pytest.raises(UnknownAttemptError):
        backend.output("k.1")
    assert not contract.left()


async def test_declined(contract: Contract) -> None:
    backend = await contract.open()
    await backend.decline(contract.spec("k", "true"), Phase.EXITED, "STOPPED", "not wanted any more")
    await backend.prepare(contract.spec("k", "true"), HOSTS)
    backend = await contract.open()
    observed = backend.observe()["k.1"]
    assert (observed.phase, observed.reason, observed.exit_code) == (Phase.EXITED, "STOPPED", None)
    await backend.remove("k.1")
    assert not contract.left()


async def test_output_by_offset(contract: Contract) -> None:
    backend = await contract.started(
        contract.spec("k", "sh", "-c", "echo one; echo two >&2; while [ ! -e go ]; do sleep 0.02; done; echo three")
    )
    output = backend.output("k.1")
    await eventually(lambda: output.size() == 8)
    assert [piece.data async for piece in output.stream(4, follow=False)] == [b"two\n"]
    streams = [piece.stream async for piece in output.stream(0, follow=False)]
    assert streams == [Stream.STDOUT, Stream.STDERR]
    followed = b""
    async with contextlib.aclosing(output.stream(4, follow=True)) as pieces:
        async for piece in pieces:
            assert piece.offset == 4 + len(followed)
            followed += piece.data
            (contract.place.directory / "scratch" / "k.1" / "go").touch()
    assert followed == b"two\nthree\n"
    assert (await contract.until("k.1", Phase.EXITED)).log_size == 14


async def test_ten_leave_nothing(contract: Contract) -> None:
    backend = await contract.open()
    await contract.ran(contract.spec("warm", "true"))
    before = len(os.listdir("/proc/self/fd"))
    semaphore = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with semaphore:
            wanted = contract.spec(f"k{number}", "sh", "-c", "mkdir -p a/b; echo x >a/b/c; echo y >/tmp/z; exit 1")
            await backend.prepare(wanted, HOSTS)
            await backend.start(wanted.id)
            await contract.until(wanted.id, Phase.EXITED)
            await backend.remove(wanted.id)

    await asyncio.gather(*(one(number) for number in range(10)))
    assert not contract.left()
    assert not backend.observe()
    # Connections to an engine are kept for the next call, as many as were asked by at once: what runs, what has ended,
    # and two watches.
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * AT_ONCE + 2
