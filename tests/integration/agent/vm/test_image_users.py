"""Who a machine's command runs as: the user that an image names, as in a container."""

from __future__ import annotations

import os
import tarfile
from typing import TYPE_CHECKING

from retinue.agent.attempts import Mount, Owner, Phase
from retinue.agent.host.processes import PROC
from tests.integration.agent.docker import accounts
from tests.integration.agent.foreign_files import FOUND, SCRIPT, made_by, make_files
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.vm.guests import code_of, machines

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.integration.agent.docker.engine import TestEngine
    from tests.integration.agent.vm.conftest import Vms

SHARED = "echo shared > /data/file && stat -c %u:%g /data/file /data; echo done; sleep 1000"


async def test_the_user_of_an_image(vms: Vms, engine: TestEngine, tmp_path_factory: pytest.TempPathFactory) -> None:
    accounts.make_image(engine, "users:app", "app")
    shared: Path = tmp_path_factory.mktemp("shared")
    (shared / "inner").mkdir(mode=0o700)
    os.chown(shared / "inner", 60_000, 60_000)
    vms.engine = engine
    script = accounts.SCRIPT + SHARED
    mounts = (Mount(str(shared), "inner", "/data", writable=True),)
    runtime = await vms.started(vms.spec("k", "sh", "-c", script, image="users:app", mounts=mounts))
    said = await vms.until_printed("k.1", "done\n")
    assert said.splitlines() == [*accounts.FOUND, "1234:99", "1234:99", "done"]
    assert await code_of(runtime.kernel("k.1"), "test $(id -u):$(id -g) = 1234:99 && echo more >> ~/file") == 0
    # On the node, QEMU and all that its guest makes belong to a user of the kernel's own, whatever images name.
    (qemu,) = machines(vms, "k.1")
    status = dict(line.split(":\t", 1) for line in (PROC / f"{qemu}/status").read_text().splitlines() if ":\t" in line)
    rights = [status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")]
    assert (status["Uid"].split(), status["Gid"].split()) == (["70000"] * 4, ["60000"] * 4)
    assert (rights, status["Groups"].split()) == (["0" * 16] * 5 + ["1", "2"], [])
    file = vms.place.directory / "scratch/k.1/file"
    assert (file.read_text(), file.stat().st_uid, file.stat().st_gid) == ("written\nmore\n", 70_000, 60_000)
    # In a directory of the node they belong to the user that all kernels share.
    made = (shared / "inner/file").stat()
    assert (made.st_uid, made.st_gid) == (60_000, 60_000)
    await runtime.kill("k.1")
    await vms.until("k.1", Phase.EXITED)
    await runtime.remove("k.1")
    assert not vms.left()


async def test_numbers_of_an_image_mean_nothing_in_a_mount(
    vms: Vms, engine: TestEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its user without a group is in that of root, as in a container, and shares directories of the image."""
    accounts.make_image(engine, "users:any", "1001")
    owner = Owner(1500, 1501)
    shared = make_files(tmp_path_factory.mktemp("shared"), owner)
    vms.engine = engine
    script = f"id -u; id -G; touch /any/file && echo shares\n{SCRIPT}"
    mounts = (Mount(str(shared), "", "/data", writable=True, owner=owner),)
    _, output = await vms.ran(vms.spec("k", "sh", "-c", script, image="users:any", mounts=mounts))
    assert output.splitlines() == ["1001", "0", "shares", *FOUND]
    assert made_by(shared) == {owner}
    assert not vms.left()


async def test_who_no_machine_runs_as(vms: Vms, engine: TestEngine) -> None:
    vms.engine = engine
    runtime = await vms.open()
    fifo = tarfile.TarInfo("etc/passwd")
    fifo.type = tarfile.FIFOTYPE
    engine.make_image("users:fifo", changes=["USER app"], entries=(fifo,))
    for user in ("toor", "missing", "app:none"):
        accounts.make_image(engine, f"users:{user.replace(':', '-')}", user)
    for tag, words in (
        ("fifo", "no plain file"),
        ("toor", "root by another name"),
        ("missing", "no user 'missing'"),
        ("app-none", "no group 'none'"),
    ):
        await runtime.prepare(vms.spec(tag, "true", image=f"users:{tag}"), HOSTS)
        failed = await vms.until(f"{tag}.1", Phase.FAILED, Phase.CREATED)
        assert (failed.phase, failed.reason) == (Phase.FAILED, "IMAGE_INVALID"), failed
        assert words in failed.message
        await runtime.remove(f"{tag}.1")
    assert not vms.left()
    assert not vms.images.exists()
