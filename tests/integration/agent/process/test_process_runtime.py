"""What only native processes have, by the real bubblewrap: isolation and limits in full, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.errors import KernelRuntimeError, WorkDirectoryMissingError
from retinue.agent.host.cgroups import Cgroups
from retinue.agent.host.launch_threads import SPARE
from retinue.agent.host.users import UserRange
from retinue.agent.inside import work_disk
from retinue.agent.kernel.build import CACHE, ENCLOSE, build
from retinue.agent.network import namespaces
from retinue.rpc import failpoints
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.process.kernels import PYTHON, spec
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from tests.integration.agent.conftest import Backends, Place

POOLS = ("asyncio_", "records_", "state_", "kernels_", "network_")
"""Names of threads of bounded pools: the loop's own, and those of `retinue.agent.host.lanes`,
which start as they are needed.
"""


async def test_inside(backends: Backends) -> None:
    program = """
import os, socket, json, pathlib
status = dict(line.split(":\\t", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
def can(path, flags):
    try:
        os.close(os.open(path, flags, 0o600)); return True
    except OSError:
        return False
print(json.dumps({
    "environment": dict(os.environ), "user": [os.getuid(), os.getgid(), os.getgroups()], "cwd": os.getcwd(),
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"], "host": socket.gethostname(), "hosts": open("/etc/hosts").read(),
    "sub1": socket.gethostbyname("sub1"), "name": __import__("pwd").getpwuid(os.getuid()).pw_name,
    "processes": sorted(int(p) for p in os.listdir("/proc") if p.isdigit()),
    "empty": [os.listdir(path) for path in ("/run", "/root", "/mnt", "/media", "/tmp")], "home": os.listdir("/home"),
    "shadow": can("/etc/shadow", os.O_RDONLY), "write_etc": can("/etc/passwd", os.O_WRONLY), "write_usr": can("/usr/x", os.O_CREAT),
    "write_home": can("/home/work/x", os.O_CREAT), "write_tmp": can("/tmp/x", os.O_CREAT), "write_shm": can("/dev/shm/x", os.O_CREAT),
    "write_cgroup": can("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.O_WRONLY),
    "interfaces": [name for _, name in socket.if_nameindex()], "descriptors": len(os.listdir("/proc/self/fd")),
    "groups": open("/proc/self/cgroup").read(), "resolve": open("/etc/resolv.conf").read(),
}))
"""
    environment = {
        "BACKENDAI_CLUSTER_ROLE": "main",
        "STRANGE": "two\nlines \"$(id)\" 'x'",
        "LD_PRELOAD": "/none.so",
        "a.b-c": "1",
    }
    backend = await backends.started(spec("k", PYTHON, "-c", program, environment=environment))
    observed = await backends.until("k.1", Phase.EXITED)
    output, errors = await backends.printed_apart("k.1")
    assert observed.exit_code == 0, errors
    await backend.remove("k.1")
    # The loader inside complains of the preload that does not exist, as it should: the variable arrived.
    assert "/none.so" in errors
    seen = json.loads(output)
    defaults = {"HOME": "/home/work", "USER": "work", "LOGNAME": "work", "LANG": "C.UTF-8"}
    assert environment.items() <= seen["environment"].items()
    assert defaults.items() <= seen["environment"].items()
    assert not [name for name in seen["environment"] if name.startswith("e0")]
    uid, gid, groups = seen["user"]
    assert uid in UserRange()
    assert gid == 60_000
    assert set(groups) <= {60_000}
    assert seen["name"] == "work"
    assert seen["capabilities"] == ["0000000000000000"] * 5
    assert seen["no_new_privileges"] == "1"
    assert (seen["host"], seen["hosts"], seen["sub1"]) == ("main1", HOSTS, "10.1.2.3")
    assert seen["processes"] == [1, 2]
    assert seen["empty"] == [["kernel"], *[[]] * 4]
    assert (seen["home"], seen["cwd"]) == (["work"], "/home/work")
    assert not any(seen[name] for name in ("shadow", "write_etc", "write_usr", "write_cgroup"))
    assert all(seen[name] for name in ("write_home", "write_tmp", "write_shm"))
    assert seen["interfaces"] == ["lo"]
    assert seen["descriptors"] == 4
    groups = seen["groups"].split()
    assert groups
    assert all(line.endswith(":/") for line in groups)
    assert "nameserver" not in seen["resolve"]


async def test_host_is_not_changed_and_secrets_are_hidden(backends: Backends) -> None:
    shown = Path("/srv") / f"{backends.place.agent_id}-shown"
    (shown / "secret").mkdir(parents=True)
    (shown / "secret" / "token").write_text("secret")
    shown.chmod(0o777)
    try:
        await backends.open(shown=(shown,), hidden=(shown / "secret",))
        script = f"ls -a {shown}/secret; echo changed >{shown}/made && cat {shown}/made && ls /srv"
        observed, output = await backends.ran(spec("k", "sh", "-c", script))
        assert observed.exit_code == 0, output
        assert output == f".\n..\nchanged\n{shown.name}\n"
        assert os.listdir(shown) == ["secret"]
    finally:
        shutil.rmtree(shown)


async def test_what_is_not_there_says_which_option_shows_it(backends: Backends) -> None:
    observed, output = await backends.ran(spec("k", "/srv/program", "argument"))
    assert observed.exit_code == 127, output
    assert "/srv/program is not in the kernel" in output
    assert "`--show PATH`" in output
    observed, output = await backends.ran(spec("m", "true", working_directory="/srv"))
    assert observed.exit_code == 214, output
    assert "/srv is not in the kernel" in output
    assert "`--show PATH`" in output


@pytest.mark.attack("files-of-the-host")
def test_a_kernel_keeps_beneath_its_root_whatever_descriptors_it_has(tmp_path: Path) -> None:
    """A directory of the node that was left open leads nowhere, where Linux has Landlock."""
    (tmp_path / "file").write_text("content")
    tmp_path.chmod(0o755)
    with contextlib.ExitStack() as stack:
        enclose = os.open(build(CACHE, ENCLOSE), os.O_RDONLY)
        stack.callback(os.close, enclose)
        node = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, node)
        command = ["bwrap", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--unshare-pid"]
        for name in ("bin", "lib", "lib64"):
            command += ["--symlink", f"usr/{name}", f"/{name}"]
        command += ["--", f"/proc/self/fd/{enclose}", "60000", "60000", "/bin/cat", "/proc/self/fd/0/file"]
        done = subprocess.run(command, stdin=node, capture_output=True, text=True, pass_fds=(enclose,), check=False)
    assert done.stderr.endswith("/file: Permission denied\n"), done
    assert "content" not in done.stdout


async def test_memory_limit(backends: Backends) -> None:
    hog = spec("k", PYTHON, "-c", "x = bytearray(200 << 20)", slots={"cpu": 1000, "mem": 64 << 20})
    observed, _ = await backends.ran(hog)
    assert (observed.exit_code, observed.reason) == (137, "OOM_KILLED")
    modest = spec(
        "m",
        "sh",
        "-c",
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>&1 | grep -v No",
        slots={"mem": 64 << 20},
    )
    observed, output = await backends.ran(modest)
    assert output == f"{64 << 20}\n"


async def test_memory_of_files_counts(backends: Backends) -> None:
    # The buffer of the second fits beside no files only.
    buffered = "dd if=/dev/zero of=/dev/null bs=45M count=1"
    observed, _ = await backends.ran(spec("k", "sh", "-c", buffered, slots={"mem": 64 << 20}))
    assert observed.exit_code == 0
    with_files = f"dd if=/dev/zero of=/tmp/x bs=1M count=30 && {buffered}"
    observed, _ = await backends.ran(spec("l", "sh", "-c", with_files, slots={"mem": 64 << 20}))
    assert observed.exit_code != 0
    assert observed.reason == "OOM_KILLED"


@pytest.mark.attack("fork-bombs-beside-others")
async def test_processor_limit(backends: Backends) -> None:
    program = """
import time
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + 1: pass
print((time.process_time() - used) / (time.monotonic() - began))
"""
    observed, output = await backends.ran(spec("k", PYTHON, "-c", program, slots={"cpu": 200, "mem": 64 << 20}))
    assert observed.exit_code == 0
    # How much it got depends on what else runs; that it got no more than a fifth does not. A part of a period more may
    # be counted at either end.
    assert 0 < float(output) < 0.4


async def test_an_image_is_refused(backends: Backends) -> None:
    backend = await backends.open()
    await backend.prepare(spec("k", "true", image="debian:12"), HOSTS)
    observed = backend.observe()["k.1"]
    assert (observed.phase, observed.reason, observed.exit_code) == (Phase.FAILED, "IMAGE_UNSUPPORTED", None)


def groups_of(agent_id: str) -> list[Path]:
    """Control groups of an agent."""
    return list(Path("/sys/fs/cgroup").glob(f"*/retinue/{agent_id}"))


def things(place: Place) -> dict[str, object]:
    """What there is on the node that a backend may leave behind."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "groups": {name for name in Cgroups(place.agent_id).names() if not name.startswith(SPARE)},
        "mounts": [line for line in mounts if str(place.directory) in line],
        "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text().split(),
        "files": sorted(path.relative_to(place.directory) for path in place.directory.rglob("*")),
    }


def threads_outside_pools() -> int:
    return sum(not thread.name.startswith(POOLS) for thread in threading.enumerate())


async def test_fifty_leave_nothing(backends: Backends) -> None:
    backend = await backends.open()
    await backends.ran(spec("warm", "true"))
    before, threads = things(backends.place), threads_outside_pools()
    semaphore = asyncio.Semaphore(4)

    async def one(number: int) -> None:
        async with semaphore:
            wanted = spec(f"k{number}", "sh", "-c", "mkdir -p a/b; echo x >a/b/c; echo y >/var/tmp/z; exit 1")
            await backend.prepare(wanted, HOSTS)
            await backend.start(wanted.id)
            await backends.until(wanted.id, Phase.EXITED)
            await backend.remove(wanted.id)

    await asyncio.gather(*(one(number) for number in range(50)))
    await eventually(lambda: things(backends.place) == before)
    # Those of other tests may have ended meanwhile.
    assert threads_outside_pools() <= threads
    await backend.close()
    assert not groups_of(backends.place.agent_id)


async def test_tree_deeper_than_the_stack_is_removed(backends: Backends) -> None:
    program = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    observed, _ = await backends.ran(spec("k", PYTHON, "-c", program))
    assert observed.exit_code == 0
    assert not list((backends.place.directory / "scratch").iterdir())


async def test_a_kernel_that_names_itself_oddly_is_taken_over_and_stopped(backends: Backends) -> None:
    """Names of processes are any bytes but NUL: neither no text nor an end of a line in them is in the agent's way."""
    name = b"\xff\x1cNSpid:\t9"
    program = f"""
import ctypes, signal, sys
ctypes.CDLL(None).prctl(15, {name!r})
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("named", flush=True)
signal.pause()
"""
    await backends.started(spec("k", PYTHON, "-c", program))
    await backends.until_printed("k.1", "named\n")
    backend = await backends.open()
    assert backend.observe()["k.1"].phase is Phase.RUNNING
    await backend.stop("k.1", NEVER)
    observed = await backends.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code) == ("STOPPED", 7)
    await backend.remove("k.1")


async def test_kernel_pins_no_network_namespace(backends: Backends) -> None:
    """A network namespace that was there when a kernel started ends when its name goes, whatever still runs."""
    name = f"{backends.place.agent_id}-pin"
    namespaces.create(name, {})
    try:
        backend = await backends.open()
        # Those that start with the first backend were prepared before; so is what they see.
        for number in range(6):
            await backend.prepare(spec(f"k{number}"), HOSTS)
        assert name in mounts_of("self")
        for number in range(6):
            monitor = json.loads((backends.place.directory / f"state/attempts/k{number}.1/record.json").read_bytes())[
                "monitor"
            ]["pid"]
            assert "nsfs" not in mounts_of(monitor)
            assert name not in mounts_of(monitor)
    finally:
        namespaces.delete(name)


def mounts_of(pid: object) -> str:
    """What a process sees mounted."""
    return Path(f"/proc/{pid}/mountinfo").read_text()


async def test_names_of_programs_are_where_the_command_looks(backends: Backends) -> None:
    environment = {"PATH": "/usr/bin:/bin"}
    backend = await backends.started(spec("k", "sh", "-c", "srun -n1 echo step", environment=environment))
    ended = await backends.until("k.1", Phase.EXITED)
    assert (await backends.printed_apart("k.1"), ended.exit_code) == (("step\n", ""), 0)
    await backend.remove("k.1")


async def test_the_program_of_tasks_comes_before_those_of_the_node(backends: Backends) -> None:
    """A node may have Slurm's own, which look for a cluster that the kernel is not in."""
    shown = Path("/srv") / f"{backends.place.agent_id}-slurm"
    shown.mkdir()
    other = shown / "several-names"
    other.write_text("#!/bin/sh\necho other\n")
    other.chmod(0o755)
    (shown / "srun").write_text(other.read_text())
    (shown / "srun").chmod(0o755)
    (shown / "scontrol").symlink_to("several-names")
    try:
        await backends.open(shown=(shown,))
        environment = {"PATH": f"{shown}:/usr/bin:/bin"}
        script = "srun -n1 echo step; scontrol show hostnames node1; several-names"
        observed, output = await backends.ran(spec("k", "sh", "-c", script, environment=environment))
        assert (observed.exit_code, output) == (0, "step\nnode1\nother\n")
    finally:
        shutil.rmtree(shown)


@pytest.mark.parametrize("step", ["confinement", "enter"])
async def test_a_command_that_the_node_cannot_start_is_no_defect_of_the_agent(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    backend = await backends.started(spec("k", "sleep", "1000"))
    monkeypatch.setattr(failpoints, "active", failpoints.Failpoints(tmp_path))
    site = {"confinement": "runtime.ProcessRuntime._exec", "enter": "entry.enter"}[step]
    # The first two that the former takes: the program, and the confinement.
    for action in ("error", "lost"):
        (tmp_path / "armed" / f"thread@agent.process.{site}={action}").touch()
        with pytest.raises(KernelRuntimeError, match=r"nothing can be started in the kernel: .*failpoint"):
            await backend.kernel("k.1").exec()
    wire = await backend.kernel("k.1").exec()
    await wire.channel.close()
    await wire.ended()
    await backend.kill("k.1")
    await backends.until("k.1", Phase.EXITED)
    await backend.remove("k.1")


@pytest.mark.parametrize("next_step", ["create", "decline"])
@pytest.mark.parametrize("point", ["record.add", "record.write_copy"])
async def test_a_first_record_whose_answer_was_lost_is_replaced(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, next_step: str
) -> None:
    backend = await backends.open()
    monkeypatch.setattr(failpoints, "active", failpoints.Failpoints(tmp_path))
    armed = tmp_path / "armed" / f"{point}=lost"
    armed.touch()
    wanted = spec("k", "sleep", "1000")
    with pytest.raises(OSError, match="its answer lost"):
        await backend.prepare(wanted, HOSTS)
    assert not armed.exists()
    assert backend.observe() == {}
    if next_step == "create":
        await backend.prepare(wanted, HOSTS)
        await backends.until("k.1", Phase.CREATED)
        await backend.kill("k.1")
        await backends.until("k.1", Phase.FAILED)
    else:
        await backend.decline(wanted, Phase.EXITED, "STOPPED", "it was to be stopped before it was created")
        await backends.until("k.1", Phase.EXITED)
    await backend.remove("k.1")
    assert os.listdir(backends.place.directory / "state" / "attempts") == ["removed"]


@pytest.mark.parametrize(
    "point",
    [
        "kernels@agent.runtime.usage_watch.UsageWatch.measure",
        "thread@agent.runtime.attempt_runtime.AttemptRuntime._record_end",
    ],
)
async def test_an_end_whose_record_is_cancelled_by_nobody_is_recorded(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    backend = await backends.started(spec("k", "sh", "-c", "until [ -e end ]; do sleep 0.05; done"))
    monkeypatch.setattr(failpoints, "active", failpoints.Failpoints(tmp_path))
    armed = tmp_path / "armed" / f"{point}=cancel"
    armed.touch()
    (backends.place.directory / "scratch" / "k.1" / "end").touch()
    await backends.until("k.1", Phase.EXITED)
    assert not armed.exists()
    await backend.remove("k.1")


async def test_a_start_that_is_cancelled_by_nobody_fails(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await backends.open()
    monkeypatch.setattr(failpoints, "active", failpoints.Failpoints(tmp_path))
    armed = tmp_path / "armed" / "thread@agent.process.runtime.ProcessRuntime._start=cancel"
    armed.touch()
    await backend.prepare(spec("k", "sleep", "1000"), HOSTS)
    assert not armed.exists()
    observed = await backends.until("k.1", Phase.FAILED)
    assert "nothing asked for that" in observed.message
    await backend.remove("k.1")
    assert os.listdir(backends.place.directory / "state" / "attempts") == ["removed"]


async def test_a_kernel_whose_work_directory_is_gone_says_so(backends: Backends) -> None:
    """Something on the node removed it; the kernel runs on."""
    backend = await backends.started(spec("k", "sleep", "1000"))
    home = backends.place.directory / "scratch" / "k.1"
    work_disk.remove(home)
    shutil.rmtree(home)
    with pytest.raises(WorkDirectoryMissingError, match="something on its node removed"):
        await backend.kernel("k.1").exec()
    assert backend.observe()["k.1"].phase is Phase.RUNNING
    await backend.kill("k.1")
    await backends.until("k.1", Phase.EXITED)
    await backend.remove("k.1")
