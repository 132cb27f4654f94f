"""The file systems of work directories: what bounds a kernel's bytes and files, and what is left of them."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.conditions import Conditions
from retinue.agent.host import loop_disk, syscalls
from retinue.agent.inside import work_disk
from retinue.agent.inside.upload import NoSpaceError, UploadHeader
from retinue.agent.process.runtime import ProcessRuntime
from retinue.agent.runtime.options import Shared
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.reasons import AgentConditionReason
from tests.integration.agent.conftest import Backends
from tests.integration.agent.manager_side import attempt
from tests.integration.agent.process.kernels import spec
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.integration.agent.agent_process import AgentProcess
    from tests.integration.agent.conftest import Place

SIZE, FILES = 32 << 20, 1000
FULL = "No space left on device"


def images(place: Place) -> set[str]:
    """Returns the names of the files at the place that loop devices of the node have."""
    found = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            file = Path(path.read_text().strip().removesuffix(" (deleted)"))
        except OSError:
            continue
        if file.parent == place.directory / "scratch":
            found.add(file.name)
    return found


def mounts(place: Place) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [point for line in lines if (point := line.split()[4]).startswith(f"{place.directory}/scratch/")]


def test_file_systems_of_one_size_are_made_from_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    make_format = loop_disk._format  # noqa: SLF001

    def counted(image: Path, files: int) -> None:
        made.append(image)
        make_format(image, files)

    monkeypatch.setattr(loop_disk, "_formats", {})
    monkeypatch.setattr(loop_disk, "_format", counted)
    images = [tmp_path / name for name in "abc"]
    for image, files in zip(images, (FILES, FILES, 2 * FILES), strict=True):
        loop_disk.make(image, SIZE, files)
        # Nothing is wrong with it.
        subprocess.run(["e2fsck", "-fn", image], check=True, capture_output=True)  # noqa: S607
    assert made == [images[0], images[2]]


class Opened(Backends):
    """Those whose node has conditions that a test looks at."""

    def __init__(self, place: Place, conditions: Conditions) -> None:
        super().__init__(place)
        self.conditions = conditions

    async def open(self, **values: object) -> ProcessRuntime:
        self.current = ProcessRuntime(self.place.options(**values), Shared(conditions=self.conditions))
        await self.current.open(self._changed)
        return self.current


async def is_gone(place: Place) -> None:
    """Waits until nothing is left of any file system: the last of its users may be about to end."""
    await eventually(lambda: images(place), lambda left: not left)
    assert not mounts(place)
    assert not list((place.directory / "scratch").iterdir())


@pytest.mark.attack("disk-of-the-node")
async def test_what_is_beyond_the_bound_gets_enospc(backends: Backends) -> None:
    """As do more files than the bound. Its neighbour has its own space, and it goes on in the space that it frees."""
    script = """
        df -k . | tail -n 1 | awk '{print $2}'; df -i . | tail -n 1 | awk '{print $2}'
        fallocate -l 64m big 2>&1 | grep -o 'No space left on device'; rm -f big
        dd if=/dev/zero of=big bs=1M count=64 2>&1 | grep -o 'No space left on device'
        echo full; until [ -e go ]; do sleep 0.05; done
        rm big && echo again >file && cat file
        i=0; while [ $i -lt 2000 ] && (: >$i) 2>/dev/null; do i=$((i+1)); done; echo $i
    """
    neighbour = "until [ -e go ]; do sleep 0.05; done; dd if=/dev/zero of=big bs=1M count=16"
    backend = await backends.open(work_size=SIZE, work_files=FILES)
    await backends.started(spec("other", "sh", "-c", neighbour))
    await backends.started(spec("k", "sh", "-c", script))
    printed = (await backends.until_printed("k.1", "full\n")).splitlines()
    blocks, inodes = map(int, printed[:2])
    assert SIZE <= blocks * 1024 <= SIZE * 1.1
    assert FILES <= inodes <= FILES * 1.1
    assert printed[2:] == [FULL, FULL, "full"]
    scratch = backends.place.directory / "scratch"
    (scratch / "other.1" / "go").touch()
    assert (await backends.until("other.1", Phase.EXITED)).exit_code == 0
    assert (scratch / "other.1" / "big").stat().st_size == 16 << 20
    assert backend.observe()["k.1"].phase is Phase.RUNNING
    (scratch / "k.1" / "go").touch()
    ended = await backends.until("k.1", Phase.EXITED)
    again, count = backends.printed("k.1").splitlines()[-2:]
    assert (ended.exit_code, again) == (0, "again")
    assert FILES - 10 <= int(count) <= FILES * 1.1
    for name in ("k.1", "other.1"):
        await backend.remove(name)
    await is_gone(backends.place)


async def test_space_is_taken_when_it_is_written_and_given_back(backends: Backends) -> None:
    script = (
        "dd if=/dev/zero of=big bs=1M count=16 conv=fsync && echo written; until [ -e go ]; do sleep 0.05; done; rm big"
    )
    backend = await backends.open(work_size=SIZE, work_files=FILES)
    await backends.started(spec("k", "sh", "-c", f"{script}; sync .; sleep 1000"))
    image = work_disk.image_of(backends.place.directory / "scratch" / "k.1")
    await backends.until_printed("k.1", "written\n")
    assert 16 << 20 <= image.stat().st_blocks * 512 < 20 << 20
    (backends.place.directory / "scratch" / "k.1" / "go").touch()
    await eventually(lambda: image.stat().st_blocks * 512, lambda size: size < 4 << 20)
    await backend.kill("k.1")
    await backends.until("k.1", Phase.EXITED)
    await backend.remove("k.1")
    await is_gone(backends.place)


async def test_an_upload_that_does_not_fit_is_refused(backends: Backends) -> None:
    backend = await backends.open(work_size=SIZE, work_files=FILES)
    await backends.started(spec("k", "sleep", "1000"))
    files = backend.kernel("k.1").files()
    with pytest.raises(NoSpaceError, match="the kernel's work directory has no space"):
        await files.begin_upload(UploadHeader("big", 2 * SIZE, 0, b""), resume=False)
    fits = await files.begin_upload(UploadHeader("small", 4, 0, b""), resume=False)
    await fits.write(b"text")
    await fits.store()
    await fits.close()
    assert (backends.place.directory / "scratch" / "k.1" / "small").read_bytes() == b"text"


async def test_a_kernel_keeps_no_file_system_of_another_that_has_ended(backends: Backends) -> None:
    """A kernel's mount namespace has what was mounted when it started: it goes there too, with its directory."""
    backend = await backends.started(spec("first", "sleep", "1000"))
    await backends.started(spec("second", "sleep", "1000"))
    assert images(backends.place) == {"first.1.image", "second.1.image"}
    await backend.kill("first.1")
    await backends.until("first.1", Phase.EXITED)
    await backend.remove("first.1")
    await eventually(lambda: images(backends.place), lambda left: left == {"second.1.image"})
    assert backend.observe()["second.1"].phase is Phase.RUNNING


async def test_a_killed_agent_leaves_the_file_system_to_the_next(process: AgentProcess, place: Place) -> None:
    """Also where the next one has mounts of its own, as in another container."""
    manager, _channel = await process.converse(await process.start())
    wait = "echo mine >file; while [ ! -e go ]; do sleep 0.02; done; cat said"
    wanted = attempt("k", "sh", "-c", wait, session_id="one")
    await manager.snapshot(wanted)
    await manager.until_state("k.1", pb.ATTEMPT_STATE_RUNNING)
    home = place.directory / "scratch" / "k.1"
    await eventually(lambda: (home / "file").exists() and (home / "file").read_text(), "mine\n".__eq__)
    assert await process.end(signal.SIGKILL) == -signal.SIGKILL
    assert (home / "file").read_text() == "mine\n"
    for point in (home, work_disk.mount_of(home)):
        syscalls.unmount(str(point), syscalls.MNT_DETACH)
    assert not list(home.iterdir())
    manager, _channel = await process.converse(await process.start())
    assert (home / "file").read_text() == "mine\n"
    (home / "said").write_text("over\n")
    (home / "go").touch()
    await manager.snapshot(wanted)
    status = await manager.until_state("k.1", pb.ATTEMPT_STATE_EXITED)
    assert (status.exit_code, status.log_size) == (0, 5)
    await manager.change(removed_attempt_ids=["k.1"])
    await manager.until(lambda: manager.removed == {"k.1"})
    assert await process.end(signal.SIGTERM) == 0
    await is_gone(place)


async def test_after_a_restart_of_the_node_the_file_goes(backends: Backends) -> None:
    backend = await backends.started(spec("k", "sleep", "1000"))
    home = backends.place.directory / "scratch" / "k.1"
    await backend.kill("k.1")
    await backends.until("k.1", Phase.EXITED)
    # As Linux has it then: a file, and two directories that nothing is mounted over.
    for point in (home, work_disk.mount_of(home)):
        syscalls.unmount(str(point), syscalls.MNT_DETACH)
    backend = await backends.open(boot_id="next-boot")
    assert not mounts(backends.place)
    await backend.remove("k.1")
    await is_gone(backends.place)


@pytest.mark.parametrize("lacking", ["CONTROL", "MAKE"])
async def test_a_node_that_cannot_bound_says_so(place: Place, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """Kernels run all the same, and nothing is left of what was begun."""
    conditions = Conditions()
    backends = Opened(place, conditions)
    with monkeypatch.context() as patched:
        # Nor is there what an earlier test made.
        patched.setattr(loop_disk, "_formats", {})
        patched.setattr(loop_disk, lacking, Path("/dev/null/none") if lacking == "CONTROL" else "no-such-program")
        backend = await backends.started(spec("k", "sh", "-c", "echo here >file; sleep 1000"))
        (condition,) = conditions.all()
        assert condition.reason == AgentConditionReason.DISK_NOT_BOUNDED
        assert ("e2fsprogs" if lacking == "MAKE" else "Not a directory") in condition.message
    home = place.directory / "scratch" / "k.1"
    await eventually((home / "file").exists)
    assert [entry.name for entry in home.parent.iterdir()] == ["k.1"]
    assert not images(place)
    # It passes with the first kernel that gets one.
    await backends.started(spec("next", "sleep", "1000"))
    assert not conditions.all()
    await backend.close()
