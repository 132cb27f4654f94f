"""What is particular about containers: hardening, images, and engines that fail."""

from __future__ import annotations

import asyncio
import errno
import io
import re
import signal
import tarfile
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from tenacity import wait_none

from retinue.agent.attempts import Isolation, Phase
from retinue.agent.docker import barrier, container_runtime, containers
from retinue.agent.docker.core.container_spec import BOUND
from retinue.agent.docker.engine import Engine, EngineUnavailableError, find_host
from retinue.agent.errors import KernelRuntimeError
from retinue.agent.process.runtime import ProcessRuntime
from retinue.agent.runtime import disk_use
from retinue.agent.runtime.attempt_records import Records
from retinue.agent.runtimes import Runtimes
from tests.eventually import eventually
from tests.integration.agent.docker.engine import IMAGE, TestEngine
from tests.integration.agent.runtime.conftest import HOSTS, Contract, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aiodocker.stream import Stream

    from tests.integration.agent.conftest import Place


@pytest.fixture
async def contract(place: Place, engine: TestEngine) -> AsyncIterator[Contract]:
    contract = Contract(place, Kind("docker", IMAGE, "docker/attempts", engine))
    yield contract
    if contract.current is not None:
        await contract.current.close()
    engine.remove_containers(place.agent_id)


@pytest.fixture
def own_engine() -> Iterator[TestEngine]:
    """An engine that a test may kill; kernels outlive it."""
    engine = TestEngine(live_restore=True)
    try:
        engine.start()
        engine.make_image()
        yield engine
    finally:
        engine.stop()


@pytest.fixture
async def own_contract(place: Place, own_engine: TestEngine) -> AsyncIterator[Contract]:
    contract = Contract(place, Kind("docker", IMAGE, "docker/attempts", own_engine))
    yield contract
    if contract.current is not None:
        await contract.current.close()


def inspected(engine: TestEngine, name: str) -> Any:
    client = engine.client()
    try:
        return client.inspect_container(name)
    finally:
        client.close()


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


async def test_hardened(contract: Contract, engine: TestEngine) -> None:
    """Nothing a kernel does not need, as the engine itself reports it."""
    await contract.held(contract.spec("k", "true", slots={"cpu": 1500, "mem": 64 << 20}))
    found = inspected(engine, "retinue-k.1")
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
        "UsernsMode": "",
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
        "/etc/hosts": ("bind", False, "rprivate"),
        "/etc/resolv.conf": ("bind", False, "rprivate"),
        "/home/work": ("bind", True, "rprivate"),
    }


async def test_inside_of_a_container(contract: Contract) -> None:
    """What the kernel of the machine says, beside what the engine says."""
    script = """
        grep -E '^Seccomp:' /proc/self/status; cat /proc/self/oom_score_adj
        cat /proc/1/environ >/dev/null 2>&1 && echo environ; ls /proc/1/fd >/dev/null 2>&1 && echo descriptors
        kill -9 1; mount -t tmpfs x /mnt 2>/dev/null && echo mounted; ip link add type dummy 2>/dev/null && echo linked
        awk '$5 ~ "^/home/work|^/run/kernel|^/etc/(hosts|resolv)" && $6 ~ /nosuid/ && $6 ~ /nodev/ { print "safe", $5 }' /proc/self/mountinfo
        ls / /dev; cat /proc/1/comm
    """
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script))
    assert observed.exit_code == 0
    lines = output.splitlines()
    assert lines[:2] == ["Seccomp:\t2", "500"]
    assert not {"environ", "descriptors", "mounted", "linked", "docker.sock", "mem", "kmsg", "vda"} & set(lines)
    assert {line.removeprefix("safe ") for line in lines if line.startswith("safe ")} == set(BOUND)
    assert lines[-1] == "init"


async def test_programs_that_set_the_filter_cannot_be_read(contract: Contract) -> None:
    """No process of the container can trace such a process, not even before it has set the filter."""
    script = "cat /run/kernel/init >/dev/null; cat /run/kernel/attach >/dev/null; wc -c </run/kernel/filter"
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script))
    assert observed.exit_code == 0
    assert output.count("Permission denied") == 2, output
    assert int(output.splitlines()[-1]) > 0


async def test_orphans_are_reaped(contract: Contract) -> None:
    # The shell counts by itself, and is alone with the first process once the orphan is gone, and not as a zombie.
    script = "(sleep 0.1 &); until set -- /proc/[0-9]*; [ $# = 2 ]; do sleep 0.02; done; echo $#"
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", script))
    assert (observed.exit_code, output) == (0, "2\n")


@pytest.mark.parametrize(
    ("user", "uid"), [("1234", "1234"), ("1234:99", "1234"), ("1234:0", "1234"), ("0", r"7\d{4}"), ("root", r"7\d{4}")]
)
async def test_user_of_an_image(contract: Contract, engine: TestEngine, user: str, uid: str) -> None:
    client = engine.client()
    image = f"retinue-test/user:{user.replace(':', '-')}"
    try:
        source = client.create_container(IMAGE, "true")["Id"]
        client.commit(source, *image.split(":"), conf={"User": user, "Env": ["FROM_IMAGE=1"], "Entrypoint": ["false"]})
        client.remove_container(source)
        script = "id -u; echo $FROM_IMAGE $HOME; echo >/home/work/x; test $(id -g) != 0"
        wanted = contract.spec("k", "sh", "-c", script, image=image)
        observed, output = await contract.ran(wanted)
        assert observed.exit_code == 0
        assert re.fullmatch(uid + "\n1 /home/work\n", output)
    finally:
        client.remove_image(image)
        client.close()


@pytest.mark.parametrize("user", ["00", "toor", "toor:users"])
async def test_an_image_does_not_make_its_user_root_by_another_name(
    contract: Contract, engine: TestEngine, user: str
) -> None:
    content, image = io.BytesIO(), f"retinue-test/root:{user.replace(':', '-')}"
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in (("passwd", b"toor:x:0:0::/:/bin/sh\n"), ("group", b"users:x:100:\n")):
            member = tarfile.TarInfo(f"etc/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    client = engine.client()
    try:
        client.import_image_from_data(
            content.getvalue(), repository="retinue-test/root", tag=image.partition(":")[2], changes=[f"USER {user}"]
        )
        backend = await contract.open()
        await backend.prepare(contract.spec("k", "true", image=image), HOSTS)
        observed = backend.observe()["k.1"]
        assert (observed.phase, observed.reason) == (Phase.FAILED, "IMAGE_INVALID"), observed.message
        assert "root by another name" in observed.message
        await backend.remove("k.1")
        assert not contract.left()
    finally:
        client.remove_image(image, force=True)
        client.close()


STRANGE: dict[str, list[tuple[str, str | bytes, int]]] = {
    # Like /dev/null, and /dev/zero.
    "device": [("etc/passwd", tarfile.CHRTYPE, 3)],
    "endless": [("etc/group", tarfile.CHRTYPE, 5)],
    "large": [("etc/passwd", tarfile.REGTYPE, 0)],
    # What is never given up by who opens it.
    "fifo": [("etc/passwd", tarfile.FIFOTYPE, 0)],
    "fifo-of-groups": [("etc/group", tarfile.FIFOTYPE, 0)],
    "fifo-behind-links": [("etc/passwd", "/a/../b", 0), ("b", "../../c", 0), ("c", tarfile.FIFOTYPE, 0)],
}
"""What an image may hold where users are named: path, kind or target of a link, and minor number."""


def strange_image(kind: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, what, minor in STRANGE[kind]:
            data = b"x\n" * (1 << 20) if what == tarfile.REGTYPE else b""
            member = tarfile.TarInfo(path)
            member.type, member.linkname = (what, "") if isinstance(what, bytes) else (tarfile.SYMTYPE, what)
            member.devmajor, member.devminor, member.size = 1, minor, len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


@pytest.mark.parametrize("kind", STRANGE)
async def test_an_image_may_hold_anything_where_its_users_are_named(
    contract: Contract, engine: TestEngine, kind: str
) -> None:
    """The agent neither fills its memory with it, nor writes to a disk of the node;
    and no engine waits for it for ever.
    """
    image = f"retinue-test/strange:{kind}"
    client = engine.client()
    try:
        client.import_image_from_data(strange_image(kind), repository="retinue-test/strange", tag=kind)
        backend = await contract.open()
        await backend.prepare(contract.spec("k", "true", image=image), HOSTS)
        observed = backend.observe()["k.1"]
        assert (observed.phase, observed.reason) == (Phase.FAILED, "IMAGE_INVALID"), observed.message
        assert "in it is no plain file" in observed.message
        await backend.remove("k.1")
        assert not contract.left()
    finally:
        client.remove_image(image, force=True)
        client.close()


class Forgetful(Engine):
    """Does what is asked, and loses its first answers."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.lost: set[str] = set()

    def _lose(self, what: str) -> None:
        if what not in self.lost:
            self.lost.add(what)
            raise EngineUnavailableError(f"the answer to {what} was lost")

    async def create(self, name: str, body: Any) -> bool:
        made = await super().create(name, body)
        self._lose("create")
        return made

    async def start(self, name: str) -> None:
        await super().start(name)
        self._lose("start")


async def test_lost_answers_start_nothing_twice(
    contract: Contract, engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.agent.docker.runtime.Engine", Forgetful)
    monkeypatch.setattr(containers._PERSIST, "wait", wait_none())  # noqa: SLF001  # no test waits for it
    observed, output = await contract.ran(contract.spec("k", "echo", "once"))
    assert (observed.exit_code, output) == (0, "once\n")
    assert not contract.left()


class Stuck(Engine):
    """Never comes to the end of opening a command, as when a kernel has a pipe where runc reads of its users."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.stuck.clear()

    stuck: ClassVar[list[str]] = []

    async def start_exec(self, execution: str) -> Stream | None:
        self.stuck.append(execution)
        await asyncio.Event().wait()
        return None


async def test_commands_that_cannot_be_attached_hold_up_nothing_else(
    contract: Contract, engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.agent.docker.runtime.Engine", Stuck)
    backend = await contract.held(contract.spec("k", "sleep", "1000"))
    await backend.start("k.1")
    attached = [asyncio.create_task(backend.kernel("k.1").exec()) for _ in range(32)]
    try:
        await eventually(lambda: len(Stuck.stuck) == len(attached))
        async with asyncio.timeout(120):
            await contract.held(contract.spec("other", "true"))
            await backend.stop("k.1", 0)
            await backend.kill("k.1")
            await eventually(lambda: backend.observe()["k.1"].phase.ended)
    finally:
        for each in attached:
            each.cancel()
        outcomes = await asyncio.gather(*attached, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}


async def test_nothing_is_released_that_a_crash_would_forget(
    contract: Contract, engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record goes to the disk while the engine starts the container; if it cannot, the container does not stay."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(Records, "make_lasting", full)
    backend = await contract.open()
    await backend.prepare(contract.spec("k", "true"), HOSTS)
    observed = backend.observe()["k.1"]
    assert (observed.phase, observed.reason) == (Phase.FAILED, "START_FAILED")
    assert "the disk is full" in observed.message
    assert not inspected(engine, "retinue-k.1")["State"]["Running"]
    await backend.remove("k.1")
    assert not contract.left()


async def test_container_of_that_name_is_not_started_again(contract: Contract, engine: TestEngine) -> None:
    """Whatever ran under the name of an attempt is not run for it a second time, and not taken for its own."""
    client = engine.client()
    try:
        client.create_container(IMAGE, "true", name="retinue-k.1")
        backend = await contract.open()
        await backend.prepare(contract.spec("k", "true"), HOSTS)
        observed = backend.observe()["k.1"]
        assert (observed.phase, observed.reason) == (Phase.FAILED, "START_FAILED")
        assert "there is a container retinue-k.1 already" in observed.message
        assert client.inspect_container("retinue-k.1")["State"]["Status"] == "created"
    finally:
        client.remove_container("retinue-k.1")
        client.close()


async def test_container_removed_by_another_process(contract: Contract, engine: TestEngine) -> None:
    backend = await contract.held(contract.spec("k"))
    await backend.start("k.1")
    engine.remove_containers(contract.place.agent_id)
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code) == ("KILLED", None)
    await backend.remove("k.1")
    assert not contract.left()


async def test_container_restarted_by_another_process(contract: Contract, engine: TestEngine) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", "echo once; sleep 1000"))
    await backend.start("k.1")
    client = engine.client()
    try:
        await asyncio.to_thread(client.restart, "retinue-k.1", timeout=0)
        observed = await contract.until("k.1", Phase.EXITED)
        assert observed.exit_code in {137, 143}
        # It waits at its barrier, which no agent opens again.
        assert contract.printed("k.1") in {"", "once\n"}
    finally:
        client.close()
    await backend.remove("k.1")
    assert not contract.left()


async def test_engine_that_comes_later(own_contract: Contract, own_engine: TestEngine) -> None:
    """Without its engine, an agent starts and knows its kernels; it creates none until the engine is back."""
    await own_contract.held(own_contract.spec("on"))
    backend = await own_contract.held(own_contract.spec("k", "sh", "-c", "echo on; exit 4"))
    await backend.close()
    own_engine.end(signal.SIGKILL)
    backend = await own_contract.open()
    assert not backend.available  # type: ignore[attr-defined]
    with pytest.raises(KernelRuntimeError, match="does not answer"):
        await backend.prepare(own_contract.spec("other", "true"), HOSTS)
    assert set(backend.observe()) == {"k.1", "on.1"}
    # Kernels are released and end without the engine; how they ended is known once it is back.
    await backend.start("k.1")
    await eventually(lambda: own_contract.printed("k.1") == "on\n")
    await backend.start("on.1")
    assert {attempt.phase for attempt in backend.observe().values()} == {Phase.RUNNING}
    own_engine.start()
    observed = await own_contract.until("k.1", Phase.EXITED)
    assert observed.reason == "EXITED"
    assert backend.observe()["on.1"].phase is Phase.RUNNING
    await backend.stop("on.1", 10)
    assert (await own_contract.until("on.1", Phase.EXITED)).exit_code == 143
    await backend.prepare(own_contract.spec("other", "true"), HOSTS)
    assert backend.observe()["other.1"].phase is Phase.CREATED
    await backend.kill("other.1")
    await own_contract.until("other.1", Phase.FAILED)


async def test_a_gate_that_its_command_has_filled_keeps_no_agent_from_starting(contract: Contract) -> None:
    fill = "exec 3<>/run/kernel/barrier; head -c 65536 /dev/zero >&3; echo full; exec sleep 1000"
    backend = await contract.held(contract.spec("k", "sh", "-c", fill))
    await backend.start("k.1")
    await eventually(lambda: contract.printed("k.1") == "full\n")
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


@pytest.mark.parametrize("directory", ["/open", "/volume"])
@pytest.mark.parametrize(
    "script",
    [
        "dd if=/dev/zero of=big bs=1M count=64",
        "i=0; while :; do : >$i; i=$((i+1)); done",
        "exec 3>big; rm big; dd if=/dev/zero bs=1M count=64 >&3; sleep 1000",
    ],
    ids=["bytes", "files", "deleted"],
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
