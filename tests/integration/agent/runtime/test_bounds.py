"""What bounds a kernel, of every kind: disk, memory, processors, tasks and output."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.host import loop_disk
from retinue.agent.resources.discovery import parse_list
from retinue.agent.runtime import disk_use
from tests.integration.agent.runtime.beside import ran
from tests.integration.agent.runtime.conftest import record
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract


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
    "reserved": "fallocate -l 64m big",
    "files": "i=0; while :; do : >$i; i=$((i+1)); done",
    "linked": ": >a; i=0; while :; do ln a $i; i=$((i+1)); done",
    "beneath": f"mkdir a; cd a; {BIG}",
    "deleted": "exec 3>big; rm big; dd if=/dev/zero bs=1M count=64 >&3; sleep 1000",
}


@pytest.mark.parametrize("hog", DISK_HOGS)
async def test_a_kernel_that_takes_too_much_of_the_disk_is_ended(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, hog: str
) -> None:
    """On a node that cannot give work directories file systems of their own."""
    monkeypatch.setattr(loop_disk, "CONTROL", Path("/dev/null/loop-control"))
    monkeypatch.setattr(disk_use, "INTERVAL", 0.1)
    monkeypatch.setattr(disk_use, "SHARE", 1.0)
    backend = await contract.open(work_size=32 << 20, work_files=1000)
    await contract.started(contract.spec("other", "sleep", "1000"))
    await contract.started(contract.spec("k", "sh", "-c", f"({DISK_HOGS[hog]}) 2>/dev/null; sleep 1000"))
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.phase, observed.reason, observed.exit_code) == (Phase.EXITED, "DISK_EXCEEDED", 137)
    assert "32 MiB" in observed.message or "1000 files" in observed.message
    assert backend.observe()["other.1"].phase is Phase.RUNNING
    # The space is given back without a request to remove it.
    home = contract.place.directory / "scratch" / "k.1"
    await eventually(lambda: not any(home.iterdir()))
    await backend.remove("k.1")
    assert not home.exists()


@pytest.mark.attack("disk-of-the-node")
async def test_a_work_directory_holds_its_bound(contract: Contract) -> None:
    """What goes beyond it gets ENOSPC, and the kernel goes on."""
    script = """
        df -k . | tail -n 1 | awk '{print $2}'
        dd if=/dev/zero of=big bs=1M count=64 2>&1 | grep -o 'No space left on device'; rm big
        i=0; while [ $i -lt 2000 ] && (: >$i) 2>/dev/null; do i=$((i+1)); done; echo $i
    """
    await contract.open(work_size=32 << 20, work_files=1000)
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script))
    blocks, full, count = output.splitlines()
    assert (observed.exit_code, full) == (0, "No space left on device")
    assert 32 << 20 <= int(blocks) << 10 <= 36 << 20
    assert 990 <= int(count) <= 1100
    assert not contract.left()
    assert not list((contract.place.directory / "scratch").iterdir())


@pytest.mark.attack("disk-of-the-node")
async def test_a_work_directory_holds_its_slot(contract: Contract) -> None:
    """Whatever the agent's own bound is: that is for kernels without the slot."""
    size = 48 << 20
    script = """
        df -k . | tail -n 1 | awk '{print $2}'; df -i . | tail -n 1 | awk '{print $2}'
        dd if=/dev/zero of=big bs=1M count=64 2>&1 | grep -o 'No space left on device'
    """
    await contract.open(work_size=8 << 20)
    slots = {"cpu": 1000, "mem": 256 << 20, "disk": size}
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script, slots=slots))
    blocks, inodes, full = output.splitlines()
    assert (observed.exit_code, full) == (0, "No space left on device")
    assert size <= int(blocks) << 10 <= size * 1.1
    bounds = disk_use.slot_bounds(size)
    assert bounds is not None
    assert bounds.files <= int(inodes) <= bounds.files * 1.1


async def test_a_kernel_that_has_more_than_its_slot_is_ended(
    contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a node that cannot give work directories file systems of their own; another has more of the same slot."""
    monkeypatch.setattr(loop_disk, "CONTROL", Path("/dev/null/loop-control"))
    monkeypatch.setattr(disk_use, "INTERVAL", 0.1)
    monkeypatch.setattr(disk_use, "SHARE", 1.0)
    backend = await contract.open(work_size=1 << 40)
    for name, size in (("other", 128 << 20), ("k", 32 << 20)):
        slots = {"cpu": 1000, "mem": 256 << 20, "disk": size}
        await contract.started(contract.spec(name, "sh", "-c", f"{BIG}; sleep 1000", slots=slots))
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, "more than 32 MiB" in observed.message) == ("DISK_EXCEEDED", True)
    assert backend.observe()["other.1"].phase is Phase.RUNNING
    # The next agent knows it, too.
    assert record(contract, "other.1")["disk"] == 128 << 20


async def test_sparse_files_take_no_space(contract: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_use, "INTERVAL", 0.05)
    monkeypatch.setattr(disk_use, "SHARE", 1.0)
    monkeypatch.setattr(loop_disk, "CONTROL", Path("/dev/null/loop-control"))
    looks: list[str] = []
    measure_footprint = disk_use.measure_footprint

    def counted(footprint: disk_use.DiskFootprint, bounds: disk_use.Bounds) -> disk_use.Use:
        if (footprint.directories[0] / "sparse").exists():
            looks.append("sparse")
        return measure_footprint(footprint, bounds)

    monkeypatch.setattr(disk_use, "measure_footprint", counted)
    backend = await contract.open(work_size=32 << 20, work_files=1000)
    await contract.started(contract.spec("k", "sh", "-c", "truncate -s 1G sparse; sleep 1000"))
    await eventually(lambda: len(looks) > 2)
    assert backend.observe()["k.1"].phase is Phase.RUNNING


async def test_limits(contract: Contract) -> None:
    script = """
        cd /sys/fs/cgroup
        cat memory/memory.limit_in_bytes || cat memory.max
        cat memory/memory.memsw.limit_in_bytes || cat memory/memory.limit_in_bytes || cat memory.max
        cat cpu/cpu.cfs_quota_us || cut -d' ' -f1 cpu.max
        cat memory/memory.kmem.tcp.limit_in_bytes || echo 16777216
        cat pids/pids.max || cat pids.max
    """
    await contract.open(tasks=50)
    wanted = contract.spec("k", "sh", "-c", f"({script}) 2>/dev/null", slots={"cpu": 1500, "mem": 64 << 20})
    observed, output = await contract.ran(wanted)
    assert observed.exit_code == 0
    # The directory of a version 1 hierarchy for tasks may not be shown inside; a limit that is shown is the right one.
    assert output.split()[:4] == [str(64 << 20), str(64 << 20), "150000", str(16 << 20)]
    assert output.split()[4:] in ([], ["50"])


async def test_libraries_make_as_many_threads_as_there_are_cores(contract: Contract) -> None:
    """Also in commands beside the kernel's own; what the user sets stays."""
    script = "echo $OMP_NUM_THREADS $MKL_NUM_THREADS $GOMAXPROCS $PYTHON_CPU_COUNT; exec sleep 1000"
    own = {"MKL_NUM_THREADS": "7", "GOMAXPROCS": ""}
    slots = {"cpu": 500, "mem": 64 << 20}
    await contract.started(contract.spec("k", "sh", "-c", script, slots=slots, environment=own))
    assert await contract.until_printed("k.1", "\n") == "1 7 1\n"
    beside = await ran(contract, "sh", "-c", "echo $OMP_NUM_THREADS $MKL_NUM_THREADS")
    assert beside.output == b"1 7\n"


@pytest.mark.attack("fork-bombs", "fork-bombs-beside-others")
async def test_task_limit(contract: Contract) -> None:
    await contract.open(tasks=20)
    script = "n=0; while [ $n -lt 100 ]; do sleep 1000 & n=$((n+1)); echo $n; done"
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script))
    assert observed.reason == "EXITED"
    assert 5 <= sum(line.isdecimal() for line in output.splitlines()) < 20


def _terminals() -> int:
    return int(Path("/proc/sys/kernel/pty/nr").read_text())


@pytest.mark.attack("terminals")
async def test_a_kernel_has_a_part_of_the_terminals_of_its_node(contract: Contract) -> None:
    before = _terminals()
    one = "sh -c 'exec 3<>/dev/ptmx && echo open && exec sleep 1000' || echo full"
    script = f"for i in $(seq 80); do ({one}) 2>/dev/null & done; wait"
    await contract.started(contract.spec("k", "sh", "-c", script))
    await eventually(lambda: len(contract.printed("k.1").splitlines()) == 80)
    printed = contract.printed("k.1").splitlines()
    assert (printed.count("open"), printed.count("full")) == (64, 16)
    # Others of the node, tests among them, have some meanwhile.
    assert _terminals() - before < 80
    # Its owner and modes are what they were.
    beside = await ran(contract, "sh", "-c", "stat -c %a /dev/ptmx /dev/pts/ptmx /dev/pts/0 | tail -n 2")
    assert beside.output == b"666\n620\n"


@pytest.mark.attack("memory-bombs")
async def test_out_of_memory(contract: Contract) -> None:
    hog = contract.spec("k", "sh", "-c", "x=x; while :; do x=$x$x; done", slots={"cpu": 1000, "mem": 32 << 20})
    observed, _ = await contract.ran(hog)
    assert (observed.exit_code, observed.reason) == (137, "OOM_KILLED")


KILLED_CHILD = "(x=x; while :; do x=$x$x; done)"


async def test_a_child_that_is_killed_for_want_of_memory_is_counted(contract: Contract) -> None:
    """While the command goes on, and when it ends well."""
    slots = {"cpu": 1000, "mem": 32 << 20}
    script = f"{KILLED_CHILD}; until [ -e go ]; do sleep 0.05; done"
    backend = await contract.started(contract.spec("k", "sh", "-c", script, slots=slots))
    await eventually(lambda: backend.observe()["k.1"].memory_kills == 1)
    assert backend.observe()["k.1"].phase is Phase.RUNNING
    go = contract.place.directory / "scratch" / "k.1" / "go"
    go.touch()
    ended = await contract.until("k.1", Phase.EXITED)
    assert (ended.exit_code, ended.reason, ended.memory_kills) == (0, "EXITED", 1)
    assert ended.memory_kill_time is not None


async def test_an_end_soon_after_a_kill_has_it_as_its_reason(contract: Contract) -> None:
    slots = {"cpu": 1000, "mem": 32 << 20}
    observed, _ = await contract.ran(contract.spec("k", "sh", "-c", f"{KILLED_CHILD}; exit 3", slots=slots))
    assert (observed.exit_code, observed.reason, observed.memory_kills) == (3, "OOM_KILLED", 1)


async def test_killed_by_itself_is_not_out_of_memory(contract: Contract) -> None:
    observed, _ = await contract.ran(contract.spec("k", "sh", "-c", "kill -9 $$"))
    assert (observed.exit_code, observed.reason) == (137, "EXITED")


@pytest.mark.attack("endless-output")
async def test_output_is_bounded_and_offsets_stay_true(contract: Contract) -> None:
    limit, size = 1 << 20, 4_096_004
    backend = await contract.open(output_limit=limit)
    script = "head -c 4096000 /dev/zero | tr '\\0' x; echo end; exec sleep 1000"
    await contract.started(contract.spec("k", "sh", "-c", script))
    output = backend.output("k.1")
    end, tail = 0, b""
    async with contextlib.aclosing(output.stream(0, follow=True)) as pieces:
        async for piece in pieces:
            # Who follows misses what was given back meanwhile, and sees nothing twice.
            assert piece.offset >= end
            end, tail = piece.offset + len(piece.data), tail[-4:] + piece.data
            if tail.endswith(b"end\n"):
                break
    assert end == output.size() == size
    file = contract.place.directory / "state" / contract.kind.records / "k.1/output.log"
    # From then on, nothing more is given back.
    await eventually(lambda: file.stat().st_blocks * 512 <= limit + limit // 8)
    left = [piece async for piece in output.stream(0, follow=False)]
    first = left[0].offset
    assert 0 < first <= size - limit
    assert sum(len(piece.data) for piece in left) == size - first
    assert b"".join(piece.data for piece in left).endswith(b"xend\n")
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)


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


@pytest.mark.attack("memory-bombs")
async def test_file_systems_in_memory_end_before_the_memory_does(contract: Contract) -> None:
    """`df` says their size, and what does not fit gets ENOSPC: reserved at once, or written."""
    script = """
        for place in /tmp /dev/shm; do
            stat -f -c '%b blocks of %S' $place
            fallocate -l 4m $place/some && stat -c %s $place/some
            fallocate -l 128m $place/all 2>&1 | grep -o 'No space left on device'
            dd if=/dev/zero of=$place/all bs=1M count=128 2>&1 | grep -o 'No space left on device'
            rm -f $place/*
        done
    """
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script, slots={"cpu": 1000, "mem": 64 << 20}))
    assert observed.exit_code == 0
    full = "No space left on device"
    assert output.splitlines() == 2 * [f"{(32 << 20) // 4096} blocks of 4096", str(4 << 20), full, full]


TOPOLOGY = [
    str(path)
    for pattern in ("cpu/cpu*/topology/core_cpus_list", "node/node*/meminfo")
    for path in sorted(Path("/sys/devices/system").glob(pattern))
]


async def test_the_topology_of_the_node_can_be_read(contract: Contract) -> None:
    """hwloc, with which MPI begins, needs it."""
    script = 'for file; do [ -r "$file" ] && echo "$file"; done'
    _, output = await contract.ran(contract.spec("k", "sh", "-c", script, "sh", *TOPOLOGY))
    assert TOPOLOGY
    assert output.splitlines() == TOPOLOGY


async def test_shared_memory_has_its_size(contract: Contract) -> None:
    command = ("sh", "-c", "stat -f -c '%b %S' /dev/shm")
    _, output = await contract.ran(contract.spec("k", *command, shared_memory=8 << 20))
    blocks, size = map(int, output.split())
    assert blocks * size == 8 << 20
