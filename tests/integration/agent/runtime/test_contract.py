"""What every kind of kernel does in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.docker.core.container_spec import container_name
from retinue.agent.errors import KernelRuntimeError, UnknownAttemptError
from retinue.agent.fencing.watchdog import FenceTarget
from retinue.agent.host.processes import Process, alive, send_signal
from retinue.agent.host.users import UserRange
from retinue.agent.process.sandbox_kernels import STATUS
from retinue.agent.resources.topology import parse_list
from retinue.agent.runtime import disk_use
from retinue.agent.runtime.bwrap_status import parse_status
from retinue.agent.state import checked
from tests.eventually import eventually
from tests.integration.agent.runtime.conftest import HOSTS

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract

AT_ONCE = 4
STUBBORN = "trap '' TERM; echo on; while :; do sleep 0.05; done"
POLITE = "trap 'echo late; exit 4' TERM; echo on; while :; do sleep 0.02; done"


def record(contract: Contract, attempt_id: str) -> dict[str, object]:
    path = contract.place.directory / "state" / contract.kind.records / attempt_id / "record.json"
    values = json.loads(path.read_text())
    assert isinstance(values, dict)
    return values


def first_process(contract: Contract, attempt_id: str) -> Process:
    values = record(contract, attempt_id)["init"]
    assert isinstance(values, dict)
    return Process(**values)


async def printed_something(contract: Contract, attempt_id: str) -> None:
    assert contract.current is not None
    async with contextlib.aclosing(contract.current.output(attempt_id).stream(0, follow=True)) as pieces:
        async for _ in pieces:
            return


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 3"), 3),
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


async def test_a_kernel_cannot_reach_the_file_of_its_output(contract: Contract) -> None:
    script = """
        echo first
        for file in /proc/self/fd/1 /dev/stdout /run/kernel/output; do
            fallocate -l 1073741824 $file; truncate -s 0 $file; truncate -s 1073741824 $file
        done 2>/dev/null
        echo last >/dev/stdout; echo error >/dev/stderr
    """
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script))
    assert (observed.exit_code, output) == (0, "first\nlast\nerror\n")
    assert observed.log_size == len(output)


BIG = "dd if=/dev/zero of=big bs=1M count=64"
DISK_HOGS = {
    "reserved": f"fallocate -l 64m big || {BIG}",
    "files": "i=0; while :; do : >$i; i=$((i+1)); done",
    "linked": ": >a; i=0; while :; do ln a $i; i=$((i+1)); done",
    "beneath": f"mkdir a; cd a; {BIG}",
    "deleted": "exec 3>big; rm big; dd if=/dev/zero bs=1M count=64 >&3; sleep 1000",
}


@pytest.mark.parametrize("hog", DISK_HOGS)
async def test_a_kernel_that_takes_too_much_of_the_disk_is_ended(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, hog: str
) -> None:
    monkeypatch.setattr(disk_use, "INTERVAL", 0.1)
    monkeypatch.setattr(disk_use, "SHARE", 1.0)
    backend = await contract.open(work_size=32 << 20, work_files=1000)
    await contract.held(contract.spec("other", "sleep", "1000"))
    await backend.start("other.1")
    await contract.held(contract.spec("k", "sh", "-c", f"({DISK_HOGS[hog]}) 2>/dev/null; sleep 1000"))
    await backend.start("k.1")
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.phase, observed.reason, observed.exit_code) == (Phase.EXITED, "DISK_EXCEEDED", 137)
    assert "32 MiB" in observed.message or "1000 files" in observed.message
    assert backend.observe()["other.1"].phase is Phase.RUNNING
    # The space is given back without a request to remove it.
    home = contract.place.directory / "scratch" / "k.1"
    await eventually(lambda: not any(home.iterdir()))
    await backend.remove("k.1")
    assert not home.exists()


async def test_sparse_files_take_no_space(contract: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_use, "INTERVAL", 0.05)
    monkeypatch.setattr(disk_use, "SHARE", 1.0)
    looks: list[str] = []
    measure_area = disk_use.measure_area

    def counted(area: disk_use.Area, bounds: disk_use.Bounds) -> disk_use.Use:
        if (area.directories[0] / "sparse").exists():
            looks.append("sparse")
        return measure_area(area, bounds)

    monkeypatch.setattr(disk_use, "measure_area", counted)
    backend = await contract.open(work_size=32 << 20, work_files=1000)
    await contract.held(contract.spec("k", "sh", "-c", "truncate -s 1G sparse; sleep 1000"))
    await backend.start("k.1")
    await eventually(lambda: len(looks) > 2)
    assert backend.observe()["k.1"].phase is Phase.RUNNING


async def test_inside(contract: Contract) -> None:
    script = """
        env; cat /etc/hosts; hostname; pwd; id -u
        grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs):' /proc/self/status
        for file in /home/work/x /tmp/x /dev/shm/x; do echo >$file && echo wrote $file; done
        for file in /etc/hosts /etc/passwd /bin/x /sys/fs/cgroup/memory/x; do (echo >$file) 2>/dev/null && echo wrote $file; done
        cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' ' | sed 's/^/interface=/'
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
    assert lines[-2:] == ["0", "done"]
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


async def test_limits(contract: Contract) -> None:
    script = """
        cd /sys/fs/cgroup
        cat memory/memory.limit_in_bytes || cat memory.max
        cat memory/memory.memsw.limit_in_bytes || cat memory/memory.limit_in_bytes || cat memory.max
        cat cpu/cpu.cfs_quota_us || cut -d' ' -f1 cpu.max
        cat pids/pids.max || cat pids.max
    """
    await contract.open(tasks=50)
    wanted = contract.spec("k", "sh", "-c", f"({script}) 2>/dev/null", slots={"cpu": 1500, "mem": 64 << 20})
    observed, output = await contract.ran(wanted)
    assert observed.exit_code == 0
    # The directory of a version 1 hierarchy for tasks may not be shown inside; a limit that is shown is the right one.
    assert output.split()[:3] == [str(64 << 20), str(64 << 20), "150000"]
    assert output.split()[3:] in ([], ["50"])


async def test_task_limit(contract: Contract) -> None:
    await contract.open(tasks=20)
    script = "n=0; while [ $n -lt 100 ]; do sleep 1000 & n=$((n+1)); echo $n; done"
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script))
    assert observed.reason == "EXITED"
    assert 5 <= sum(line.isdecimal() for line in output.splitlines()) < 20


async def test_out_of_memory(contract: Contract) -> None:
    hog = contract.spec("k", "sh", "-c", "x=x; while :; do x=$x$x; done", slots={"cpu": 1000, "mem": 32 << 20})
    observed, _ = await contract.ran(hog)
    assert (observed.exit_code, observed.reason) == (137, "OOM_KILLED")


async def test_killed_by_itself_is_not_out_of_memory(contract: Contract) -> None:
    observed, _ = await contract.ran(contract.spec("k", "sh", "-c", "kill -9 $$"))
    assert (observed.exit_code, observed.reason) == (137, "EXITED")


@pytest.mark.parametrize("held", [True, False])
async def test_idle_and_stop(contract: Contract, held: bool) -> None:
    backend = await contract.held(contract.spec("k"))
    if not held:
        await backend.start("k.1")
    await backend.stop("k.1", 30)
    if held:
        observed = backend.observe()["k.1"]
        assert observed.phase is Phase.STOPPING
        assert observed.kill_at is not None
        await backend.kill("k.1")
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code) == ("STOPPED", None if held else 143)


async def test_polite_end(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", POLITE))
    await backend.start("k.1")
    await printed_something(contract, "k.1")
    await backend.stop("k.1", 30)
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code, contract.printed("k.1")) == ("STOPPED", 4, "on\nlate\n")


async def test_stop_continues_in_the_next_agent(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", STUBBORN))
    await backend.start("k.1")
    await printed_something(contract, "k.1")
    await backend.stop("k.1", 60)
    backend = await contract.open()
    observed = backend.observe()["k.1"]
    assert observed.phase is Phase.STOPPING
    assert observed.kill_at is not None
    assert 0 < observed.kill_at - time.monotonic() <= 60
    await backend.kill("k.1")
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code) == ("STOPPED", 137)


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


async def test_created_and_released_once(contract: Contract) -> None:
    backend = await contract.open()
    wanted = contract.spec("k", "sh", "-c", "echo once")
    await asyncio.gather(*(backend.prepare(wanted, HOSTS) for _ in range(5)))
    await asyncio.gather(*(backend.start("k.1") for _ in range(5)))
    await contract.until("k.1", Phase.EXITED)
    await backend.prepare(wanted, HOSTS)
    backend = await contract.open()
    await backend.prepare(wanted, HOSTS)
    assert backend.observe()["k.1"].phase is Phase.EXITED
    assert contract.printed("k.1") == "once\n"
    await backend.remove("k.1")
    backend = await contract.open()
    await backend.prepare(wanted, HOSTS)
    assert backend.observe()["k.1"].reason == "ALREADY_REMOVED"


async def test_removed_only_when_it_has_ended(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k"))
    with pytest.raises(KernelRuntimeError):
        await backend.remove("k.1")
    assert backend.observe()["k.1"].phase is Phase.CREATED
    with pytest.raises(UnknownAttemptError):
        await backend.remove("other.1")
    await backend.stop("k.1", 0)
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)


async def test_release_that_was_recorded_and_not_done(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "echo", "out"))
    await backend.close()
    path = contract.place.directory / "state" / contract.kind.records / "k.1" / "record.json"
    values = checked.load(path.read_bytes())
    path.write_bytes(checked.dump(values | {"phase": "running", "start_time": 1.0}))
    await contract.open()
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.exit_code, contract.printed("k.1")) == (0, "out\n")


async def test_end_while_no_agent_is_there(contract: Contract) -> None:
    backend = await contract.held(
        contract.spec("k", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; echo off; exit 9")
    )
    await backend.start("k.1")
    init = first_process(contract, "k.1")
    await backend.close()
    (contract.place.directory / "scratch" / "k.1" / "go").touch()
    await eventually(lambda: not alive(init) and _is_noted(contract, "k.1"))
    # What is reported must be that, and not when the agent came back.
    back = time.time()
    backend = await contract.open()
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.exit_code, observed.reason, contract.printed("k.1")) == (9, "EXITED", "off\n")
    assert observed.end_time is not None
    assert observed.end_time < back


def _is_noted(contract: Contract, attempt_id: str) -> bool:
    """Whether the engine, or the process that watches over a kernel, has noted its end,
    as they do a moment after it.
    """
    if contract.kind.engine is None:
        place = contract.place.directory / "state" / contract.kind.records / attempt_id
        return parse_status((place / STATUS).read_text()).exit_code is not None
    client = contract.kind.engine.client()
    try:
        return str(client.inspect_container(f"retinue-{attempt_id}")["State"]["Status"]) == "exited"
    finally:
        client.close()


@pytest.mark.parametrize("copies", ["copies kept", "copies lost"])
async def test_kernels_outlive_their_records(contract: Contract, copies: str) -> None:
    records = contract.place.directory / "state" / contract.kind.records
    for name in ("damaged", "gone", "held"):
        backend = await contract.held(contract.spec(name, "sleep", "1000"))
        if name != "held":
            await backend.start(f"{name}.1")
    before = {name: first_process(contract, f"{name}.1") for name in ("damaged", "gone", "held")}
    await backend.close()
    (records / "damaged.1" / "record.json").write_text('{"id": "dam')
    for name in ("gone", "held"):
        shutil.rmtree(records / f"{name}.1")
    if copies == "copies lost":
        shutil.rmtree(records.with_name("attempts.copies"))
    backend = await contract.open()
    for name, init in before.items():
        attempt_id = f"{name}.1"
        observed = await contract.until(attempt_id, Phase.CREATED if name == "held" else Phase.RUNNING)
        assert backend.kernel(attempt_id).fence_target() == FenceTarget(init)
        assert observed.rebuilt is (copies == "copies lost")
        # It is not started a second time.
        await backend.prepare(contract.spec(name, "true"), HOSTS)
        await backend.identify(contract.spec(name))
        assert backend.observe()[attempt_id].session_id == "session"
    # Nor does a lost file keep a kernel from being released and stopped.
    await backend.start("held.1")
    for name in before:
        await backend.stop(f"{name}.1", 10)
        assert (await contract.until(f"{name}.1", Phase.EXITED)).reason == "STOPPED"
        await backend.remove(f"{name}.1")
    assert not contract.left()


async def test_what_was_started_is_not_started_again_without_its_record(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "true"))
    await backend.start("k.1")
    await contract.until("k.1", Phase.EXITED)
    await backend.close()
    state = contract.place.directory / "state"
    for directory in (state / contract.kind.records, (state / contract.kind.records).with_name("attempts.copies")):
        shutil.rmtree(directory)
    backend = await contract.open()
    await backend.prepare(contract.spec("k", "true"), HOSTS)
    observed = await contract.until("k.1", Phase.FAILED, Phase.EXITED)
    assert observed.reason in {"RECORD_LOST", "EXITED"}
    await backend.remove("k.1")
    assert not contract.left()


@pytest.mark.parametrize("kind", ["docker"], indirect=True)
async def test_containers_of_others_are_left_alone(contract: Contract) -> None:
    assert contract.kind.engine is not None
    agent_id = contract.place.agent_id
    labels = {"retinue.agent": agent_id, "retinue.attempt": "foreign.1"}
    with contextlib.closing(contract.kind.engine.client()) as client:
        made = client.create_container(contract.kind.image, ["sleep", "1000"], labels=labels)["Id"]
        # Under the name that an attempt's own would have, and without its labels.
        named = client.create_container(contract.kind.image, ["sleep", "1000"], name=container_name("named.1"))["Id"]
        try:
            client.start(made)
            client.start(named)
            backend = await contract.open()
            assert not backend.observe()
            await backend.prepare(contract.spec("named", "true"), HOSTS)
            assert (await contract.until("named.1", Phase.FAILED)).reason == "START_FAILED"
            await backend.remove("named.1")
            for container in (made, named):
                assert client.inspect_container(container)["State"]["Running"]
        finally:
            for container in (made, named):
                client.remove_container(container, force=True)


async def test_node_restart(contract: Contract) -> None:
    for name in ("held", "running", "done"):
        backend = await contract.held(contract.spec(name, *(("true",) if name == "done" else ("sleep", "1000"))))
    await backend.start("running.1")
    await backend.start("done.1")
    await contract.until("done.1", Phase.EXITED)
    await backend.close()
    # A restart of the node ends all at once: no process is left to record a code.
    for name in ("held.1", "running.1"):
        values = record(contract, name)
        for key in ("monitor", "init"):
            process = values[key]
            if isinstance(process, dict):
                send_signal(Process(**process), 9)  # type: ignore[arg-type]
    backend = await contract.open(boot_id="another-boot")
    observed = {name: await contract.until(f"{name}.1", Phase.EXITED) for name in ("held", "running", "done")}
    assert {name: (attempt.reason, attempt.exit_code) for name, attempt in observed.items()} == {
        "held": ("NODE_REBOOTED", None),
        "running": ("NODE_REBOOTED", None),
        "done": ("EXITED", 0),
    }
    for name in observed:
        await backend.remove(f"{name}.1")
    assert not contract.left()


async def test_output_by_offset(contract: Contract) -> None:
    backend = await contract.held(
        contract.spec("k", "sh", "-c", "echo one; echo two >&2; while [ ! -e go ]; do sleep 0.02; done; echo three")
    )
    await backend.start("k.1")
    output = backend.output("k.1")
    await eventually(lambda: output.size() == 8)
    assert [piece.data async for piece in output.stream(4, follow=False)] == [b"two\n"]
    followed = b""
    async with contextlib.aclosing(output.stream(4, follow=True)) as pieces:
        async for piece in pieces:
            assert piece.offset == 4 + len(followed)
            followed += piece.data
            (contract.place.directory / "scratch" / "k.1" / "go").touch()
    assert followed == b"two\nthree\n"
    assert (await contract.until("k.1", Phase.EXITED)).log_size == 14


async def test_output_is_bounded_and_offsets_stay_true(contract: Contract) -> None:
    backend = await contract.open(output_limit=1 << 20)
    script = "head -c 4096000 /dev/zero | tr '\\0' x; echo end; exec sleep 1000"
    await contract.held(contract.spec("k", "sh", "-c", script))
    await backend.start("k.1")
    output = backend.output("k.1")
    size = 4_096_004

    def first_byte() -> int:
        piece = output.read(0)
        return 0 if piece is None else piece.offset

    await eventually(lambda: output.size() == size and first_byte() > 0)
    first = first_byte()
    assert 0 < first <= size - (1 << 20)
    left = [piece async for piece in output.stream(0, follow=False)]
    assert left[0].offset == first
    assert sum(len(piece.data) for piece in left) == size - first
    assert b"".join(piece.data for piece in left).endswith(b"xend\n")
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)


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

    async with asyncio.timeout(60):
        await asyncio.gather(*(one(number) for number in range(10)))
    assert not contract.left()
    assert not backend.observe()
    # Connections to an engine are kept for the next call, as many as were asked by at once: what runs, what has ended,
    # and two watches.
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * AT_ONCE + 2


async def test_whole_cores_are_its_own_over_restarts(contract: Contract) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.fail("this test needs two cores")
    contract.cores = {0: cores[:2]}
    slots = {"cpu": 1000, "mem": 64 << 20}
    command = ("sh", "-c", "grep Cpus_allowed_list /proc/self/status")
    backend = await contract.held(contract.spec("one", *command, slots=slots))
    backend = await contract.open()
    await contract.held(contract.spec("two", *command, slots=slots))
    # There are no more; a share of a core, or one too many, runs on any.
    await contract.held(contract.spec("three", *command, slots=slots))
    for name, expected in (("one", cores[:1]), ("two", cores[1:2]), ("three", cores)):
        await backend.start(f"{name}.1")
        await contract.until(f"{name}.1", Phase.EXITED)
        allowed = contract.printed(f"{name}.1").split()[1]
        assert parse_list(allowed) == expected
        await backend.remove(f"{name}.1")
    _, output = await contract.ran(contract.spec("four", *command, slots=slots))
    assert parse_list(output.split()[1]) == cores[:1]


async def test_shared_memory_has_its_size(contract: Contract) -> None:
    command = ("sh", "-c", "stat -f -c '%b %S' /dev/shm")
    _, output = await contract.ran(contract.spec("k", *command, shared_memory=8 << 20))
    blocks, size = map(int, output.split())
    assert blocks * size == 8 << 20
