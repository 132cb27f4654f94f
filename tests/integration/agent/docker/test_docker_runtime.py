"""What is particular about containers: hardening, images, and engines that fail."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.attempts import Isolation, Phase
from retinue.agent.docker import barrier, container_runtime
from retinue.agent.docker.core.container_spec import BOUND
from retinue.agent.docker.engine import find_host
from retinue.agent.kernel.paths import STEPS
from retinue.agent.process.runtime import ProcessRuntime
from retinue.agent.runtime import disk_use
from retinue.agent.runtimes import Runtimes
from tests.integration.agent.docker.containers import contract
from tests.integration.agent.docker.engine import IMAGE, TestEngine
from tests.integration.agent.opened import HOSTS
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.agent.runtime.conftest import Contract

__all__ = ["contract"]


async def test_what_is_seen_to_run_was_released(contract: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await contract.held(contract.spec("k", "true"))
    seen: list[Phase] = []

    def open_barrier(*args: Any) -> None:
        seen.append(node.observe()["k.1"].phase)
        if len(seen) == 1:
            raise OSError(errno.EIO, "odd")
        barrier.open_barrier(*args)

    monkeypatch.setattr(container_runtime, "open_barrier", open_barrier)
    with pytest.raises(OSError, match="odd"):
        await node.start("k.1")
    # It is tried again.
    await node.start("k.1")
    await contract.until("k.1", Phase.EXITED)
    assert seen == [Phase.CREATED, Phase.CREATED]


@pytest.mark.attack("powers-of-containers")
async def test_hardened(contract: Contract, engine: TestEngine) -> None:
    """Nothing a kernel does not need, as the engine itself reports it."""
    await contract.held(contract.spec("k", "true", slots={"cpu": 1500, "mem": 64 << 20}))
    found = engine.inspected("retinue-k.1")
    host, configuration = found["HostConfig"], found["Config"]
    expected = {
        "Privileged": False,
        "CapAdd": None,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "NetworkMode": "none",
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "host",
        "CgroupnsMode": "private",
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
        "OomScoreAdj": 500,
        "OomKillDisable": False,
        "PidsLimit": 4096,
        "Memory": 64 << 20,
        "MemorySwap": 64 << 20,
        "ShmSize": 32 << 20,
        "CpuQuota": 150_000,
        "CpuPeriod": 100_000,
        "Binds": None,
        "VolumesFrom": None,
        "PortBindings": None,
        "Links": None,
        "Sysctls": None,
        "LogConfig": {"Type": "local", "Config": {"max-file": "3", "max-size": "10m"}},
    }
    assert {name: host.get(name) for name in expected} == expected
    assert not host["Devices"]
    assert not host["DeviceRequests"]
    assert {"/proc/kcore", "/proc/keys", "/sys/firmware"} <= set(host["MaskedPaths"])
    assert {"/proc/sys", "/proc/sysrq-trigger"} <= set(host["ReadonlyPaths"])
    ulimits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]}
    assert ulimits["core"] == (0, 0)
    assert 1024 <= ulimits["nofile"][1] <= 65_536
    assert re.fullmatch(r"7\d{4}:60000", configuration["User"])
    assert not configuration["ExposedPorts"] if "ExposedPorts" in configuration else True
    mounts = {mount["Destination"]: (mount["Type"], mount["RW"], mount["Propagation"]) for mount in found["Mounts"]}
    assert mounts == {
        "/run/kernel/init": ("bind", False, "rprivate"),
        "/run/kernel/attach": ("bind", False, "rprivate"),
        "/run/kernel/filter": ("bind", False, "rprivate"),
        "/run/kernel/barrier": ("bind", True, "rprivate"),
        "/run/kernel/output": ("bind", True, "rprivate"),
        "/run/kernel/output.stdout": ("bind", True, "rprivate"),
        "/etc/hosts": ("bind", False, "rprivate"),
        "/etc/resolv.conf": ("bind", False, "rprivate"),
        "/home/work": ("bind", True, "rprivate"),
    }


async def test_inside_of_a_container(contract: Contract) -> None:
    """What the kernel of the machine says, beside what the engine says."""
    script = """
        grep -E '^Seccomp:' /proc/self/status; cat /proc/self/oom_score_adj
        cat /proc/1/environ >/dev/null 2>&1 && echo environ; ls /proc/1/fd >/dev/null 2>&1 && echo descriptors
        kill -9 1 2>/dev/null; mount -t tmpfs x /mnt 2>/dev/null && echo mounted; ip link add type dummy 2>/dev/null && echo linked
        awk '$5 ~ "^/home/work|^/run/kernel|^/etc/(hosts|resolv)" && $6 ~ /nosuid/ && $6 ~ /nodev/ { print "safe", $5 }' /proc/self/mountinfo
        ls / /dev; cat /proc/1/comm
    """
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script))
    assert observed.exit_code == 0
    lines = output.splitlines()
    assert lines[:2] == ["Seccomp:\t2", "500"]
    assert not {"environ", "descriptors", "mounted", "linked", "docker.sock", "mem", "kmsg", "vda"} & set(lines)
    assert {line.removeprefix("safe ") for line in lines if line.startswith("safe ")} == {*BOUND, STEPS}
    assert lines[-1] == "init"


async def test_programs_that_set_the_filter_cannot_be_read(contract: Contract) -> None:
    """No process of the container can trace such a process, not even before it has set the filter."""
    script = "cat /run/kernel/init >/dev/null; cat /run/kernel/attach >/dev/null; wc -c </run/kernel/filter"
    backend = await contract.started(contract.spec("k", "sh", "-c", script))
    observed = await contract.until("k.1", Phase.EXITED)
    output, errors = await contract.printed_apart("k.1")
    assert observed.exit_code == 0
    assert errors.count("Permission denied") == 2, errors
    assert int(output) > 0
    await backend.remove("k.1")


async def test_orphans_are_reaped(contract: Contract) -> None:
    # The shell counts by itself, and is alone with the first process once the orphan is gone, and not as a zombie.
    script = "(sleep 0.1 &); until set -- /proc/[0-9]*; [ $# = 2 ]; do sleep 0.02; done; echo $#"
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script))
    assert (observed.exit_code, output) == (0, "2\n")


async def test_a_gate_that_its_command_has_filled_keeps_no_agent_from_starting(contract: Contract) -> None:
    fill = "exec 3<>/run/kernel/barrier; head -c 65536 /dev/zero >&3; echo full; exec sleep 1000"
    backend = await contract.started(contract.spec("k", "sh", "-c", fill))
    await contract.until_printed("k.1", "full\n")
    await backend.close()
    # It is released once more, in case a former agent did not come to that.
    backend = await contract.open()
    assert backend.observe()["k.1"].phase is Phase.RUNNING
    await backend.stop("k.1", 0)
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)
    await backend.remove("k.1")
    assert not contract.left()


async def test_where_an_engine_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: TestEngine) -> None:
    path = tmp_path / "none"
    monkeypatch.setattr("retinue.agent.docker.engine.DEFAULT_HOST", f"unix://{path}")
    assert await find_host("", needed=False) is None
    assert await find_host("", needed=True) == f"unix://{path}"
    assert await find_host("unix:///given", needed=False) == "unix:///given"
    monkeypatch.setattr("retinue.agent.docker.engine.DEFAULT_HOST", engine.host)
    assert await find_host("", needed=False) == engine.host


async def test_one_agent_runs_both_kinds(contract: Contract) -> None:
    docker = await contract.open()
    process = ProcessRuntime(contract.place.options())
    both = Runtimes(process, {Isolation.CONTAINER: docker})  # type: ignore[dict-item]
    await both.open(lambda: None)
    try:
        assert [status.name for status in both.statuses if status.available] == ["process", "sftp", "docker"]
        wanted = {"native": ("", Isolation.PROCESS), "contained": (IMAGE, Isolation.CONTAINER)}
        for name, (image, isolation) in wanted.items():
            spec = contract.spec(name, "cat", "/proc/1/comm", image=image, isolation=isolation)
            await both.prepare(spec, HOSTS)
            await both.start(f"{name}.1")
        ended = dict.fromkeys(wanted, Phase.EXITED)
        await eventually(lambda: {name: both.observe()[f"{name}.1"].phase for name in wanted} == ended)
        printed = {name: both.output(f"{name}.1").read(0) for name in wanted}
        assert {name: piece and piece.data for name, piece in printed.items()} == {
            "native": b"bwrap\n",
            "contained": b"init\n",
        }
        for name in wanted:
            await both.remove(f"{name}.1")
        assert not both.observe()
    finally:
        await both.close()
    alone = Runtimes(ProcessRuntime(contract.place.options(state_dir=contract.place.directory / "other")))
    await alone.open(lambda: None)
    try:
        for isolation in (Isolation.CONTAINER, Isolation.VM, Isolation.OTHER):
            spec = contract.spec(isolation.value, "true", isolation=isolation)
            await alone.prepare(spec, HOSTS)
            observed = alone.observe()[spec.id]
            assert (observed.phase, observed.reason) == (Phase.FAILED, "ISOLATION_UNSUPPORTED")
            assert observed.message.startswith("this node does not run ")
            # Not again, and not as something else.
            await alone.prepare(spec, HOSTS)
            assert alone.observe()[spec.id] == observed
            await alone.remove(spec.id)
        await alone.prepare(contract.spec("k", "true"), HOSTS)
        assert alone.observe()["k.1"].reason == "IMAGE_UNSUPPORTED"
    finally:
        await alone.close()


BYTES = "dd if=/dev/zero of=big bs=1M count=64"
FILES = "i=0; while :; do : >$i; i=$((i+1)); done"
DELETED = "exec 3>big; rm big; dd if=/dev/zero bs=1M count=64 >&3; sleep 1000"


async def test_work_directory_and_root_count_together(
    contract: Contract, engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full work directory alone is no offence: what is beyond it gets ENOSPC."""
    monkeypatch.setattr(disk_use, "INTERVAL", 0.1)
    monkeypatch.setattr(disk_use, "SHARE", 1.0)
    looks: list[str] = []
    measure_footprint = disk_use.measure_footprint

    def counted(footprint: disk_use.DiskFootprint, bounds: disk_use.Bounds) -> disk_use.Use:
        use = measure_footprint(footprint, bounds)
        if footprint.bounded is not None and use.size > 60 << 20:
            looks.append(footprint.bounded.name)
        return use

    monkeypatch.setattr(disk_use, "measure_footprint", counted)
    client = engine.client()
    image = "retinue-test/open:2"
    slots = {"cpu": 1000, "mem": 256 << 20, "disk": 64 << 20}
    try:
        source = client.create_container(IMAGE, ["mkdir", "-m", "777", "/open"])["Id"]
        client.start(source)
        client.wait(source)
        client.commit(source, *image.split(":"))
        client.remove_container(source)
        backend = await contract.open()
        script = "dd if=/dev/zero of=big bs=1M count=128; sync big; sleep 1000"
        await contract.started(contract.spec("full", "sh", "-c", script, image=image, slots=slots))
        await eventually(lambda: looks.count("full.1") > 3)
        assert backend.observe()["full.1"].phase is Phase.RUNNING
        script = "for there in . /open; do dd if=/dev/zero of=$there/big bs=1M count=45; done; sleep 1000"
        await contract.started(contract.spec("k", "sh", "-c", script, image=image, slots=slots))
        observed = await contract.until("k.1", Phase.EXITED)
        assert (observed.reason, "more than 72 MiB" in observed.message) == ("DISK_EXCEEDED", True)
        assert backend.observe()["full.1"].phase is Phase.RUNNING
    finally:
        client.remove_image(image, force=True)
        client.close()


@pytest.mark.parametrize(
    ("directory", "script"),
    [("/open", BYTES), ("/volume", BYTES), ("/open", FILES), ("/volume", FILES), ("/open", DELETED)],
)
async def test_what_a_container_writes_over_its_image_counts(
    contract: Contract, engine: TestEngine, monkeypatch: pytest.MonkeyPatch, script: str, directory: str
) -> None:
    monkeypatch.setattr(disk_use, "INTERVAL", 0.1)
    monkeypatch.setattr(disk_use, "SHARE", 1.0)
    client = engine.client()
    image = "retinue-test/open:1"
    try:
        source = client.create_container(IMAGE, ["mkdir", "-m", "777", "/open", "/volume"])["Id"]
        client.start(source)
        client.wait(source)
        client.commit(source, *image.split(":"), changes=["VOLUME /volume"])
        client.remove_container(source)
        backend = await contract.open(work_size=32 << 20, work_files=1000)
        command = f"cd {directory} && truncate -s 1G sparse && ({script}) 2>/dev/null; sleep 1000"
        await contract.held(contract.spec("k", "sh", "-c", command, image=image))
        await backend.start("k.1")
        observed = await contract.until("k.1", Phase.EXITED)
        assert (observed.reason, observed.exit_code) == ("DISK_EXCEEDED", 137)
        # Sparse files take no space.
        assert not re.search(r"take 1\d{3} MiB", observed.message)
        # The space is given back without a request to remove it.
        await eventually(lambda: not client.containers(all=True, filters={"name": "retinue-k.1"}))
        await backend.remove("k.1")
        assert not contract.left()
    finally:
        client.remove_image(image, force=True)
        client.close()
