"""Machines over images: exported once, shared, and never changed."""

from __future__ import annotations

import asyncio
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import Mount, Phase, PullPolicy
from retinue.agent.vm import images
from tests.integration.agent.docker.engine import IMAGE
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.integration.agent.docker.engine import TestEngine
    from tests.integration.agent.vm.conftest import Vms

SCRIPT = """
echo "$HOME $PWD $(hostname) $(id -un)"
echo changed > /tmp/file && cat /tmp/file
(echo x > /etc/new) 2>/dev/null || echo not root
readlink /proc/1/exe > /dev/null 2>&1 || echo hidden
grep sub1 /etc/hosts
"""


async def test_an_image_is_exported_once_for_all_machines(vms: Vms, engine: TestEngine) -> None:
    vms.engine = engine
    runtime = await vms.open()
    wanted = vms.spec("k", "sh", "-c", SCRIPT, image=IMAGE)
    await runtime.prepare(wanted, "127.0.0.1\tlocalhost\n10.1.2.3\tsub1\n")
    # Its root is made in the background: other attempts need not wait.
    assert runtime.observe()["k.1"].phase is Phase.PULLING
    observed, output = await vms.ran(wanted)
    assert (observed.exit_code, observed.reason) == (0, "EXITED"), observed
    assert output.splitlines() == [
        "/home/work /home/work main1 work",
        "changed",
        "not root",
        "hidden",
        "10.1.2.3\tsub1",
    ]
    assert observed.image is not None
    (root,) = vms.images.iterdir()
    assert root.name == f"{observed.image.identity.id.removeprefix('sha256:')}.squashfs"
    made = root.stat().st_ino
    # The next one boots at once.
    asks_nobody = vms.spec("other", "true", image=IMAGE, pull_policy=PullPolicy.NEVER)
    await runtime.prepare(asks_nobody, "127.0.0.1\tlocalhost\n")
    other = await vms.until("other.1", Phase.CREATED, Phase.FAILED)
    assert other.phase is Phase.CREATED, other
    assert [(entry.name, entry.stat().st_ino) for entry in vms.images.iterdir()] == [(root.name, made)]
    await runtime.kill("other.1")
    await vms.until("other.1", Phase.FAILED)
    await runtime.remove("other.1")
    # An address that no registry may have is not even asked: of an image that is not there, or that may have moved.
    client = engine.client()
    try:
        client.tag(IMAGE, "127.0.0.1:9/there", "1")
        for name, image, policy, reason in (
            ("missing", "none:1", PullPolicy.MISSING, "IMAGE_DENIED"),
            ("moved", "there:1", PullPolicy.ALWAYS, "IMAGE_DENIED"),
            ("never", "none:1", PullPolicy.NEVER, "IMAGE_NOT_PRESENT"),
        ):
            wanted = vms.spec(name, "true", image=f"127.0.0.1:9/{image}", pull_policy=policy)
            await runtime.prepare(wanted, "")
            failed = await vms.until(wanted.id, Phase.FAILED)
            assert failed.reason == reason, failed
            await runtime.remove(wanted.id)
    finally:
        client.remove_image("127.0.0.1:9/there:1")
        client.close()
    assert not vms.left()


async def test_a_packer_that_says_much_does_not_hang(
    vms: Vms, engine: TestEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packer = tmp_path / "packer"
    packer.write_text("#!/bin/sh\nhead -c 4000000 /dev/zero | tr '\\0' w >&2\ncat >/dev/null\nexit 3\n")
    packer.chmod(0o755)
    monkeypatch.setattr(images, "PACKER", str(packer))
    vms.engine = engine
    runtime = await vms.open()
    await runtime.prepare(vms.spec("k", "true", image=IMAGE), "127.0.0.1\tlocalhost\n")
    failed = await vms.until("k.1", Phase.FAILED)
    assert "the image cannot be packed: www" in failed.message
    assert len(failed.message) < 2 * images.WORDS_LIMIT
    await runtime.remove("k.1")
    assert not vms.left()
    assert not [entry.name for entry in vms.images.iterdir()]


NAMED = """
/bin/echo "$USER $LOGNAME $SHELL"
srun -n1 /bin/echo step
scontrol show hostnames main1
/bin/ls /opt/tools/bin /usr/local/bin
"""


async def test_programs_have_names_where_an_image_looks_for_them(
    vms: Vms, engine: TestEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine.make_image("path:1", changes=["ENV PATH=/data/bin:/opt/tools/bin", "ENV LOGNAME=ann"])
    shared: Path = tmp_path_factory.mktemp("shared")
    (shared / "inner").mkdir()
    (shared / "inner").chmod(0o777)
    vms.engine = engine
    mounts = tuple(Mount(str(shared), "inner", target, writable=True) for target in ("/data", "/usr/local/bin"))
    ended, output = await vms.ran(vms.spec("k", "/bin/sh", "-c", NAMED, image="path:1", mounts=mounts))
    assert output.splitlines() == [
        *("ann ann /bin/sh", "step", "main1"),
        *("/opt/tools/bin:", "scontrol", "srun", "", "/usr/local/bin:"),
    ], ended
    # Nothing of it is in directories of the node.
    assert not [*(shared / "inner").iterdir()]
    assert not vms.left()


LINKS = """
cd && pwd -P && echo written > file && cat /home/work/file
grep -c work: /etc/passwd; id -un; hostname; ls /var/here
grep NoNewPrivs /proc/self/status
"""


def entry(name: str, kind: bytes = tarfile.DIRTYPE, leads: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, leads, 0o755
    return made


async def test_links_of_an_image_lead_nowhere_else(vms: Vms, engine: TestEngine) -> None:
    odd = (
        *(entry("data"), entry("data/home"), entry("var"), entry("var/here"), entry("etc")),
        *(entry("home", tarfile.SYMTYPE, "/data/home"), entry("run", tarfile.SYMTYPE, "/var")),
        # A reader of it waits.
        entry("etc/passwd", tarfile.FIFOTYPE),
        *(entry(f"etc/{name}", tarfile.SYMTYPE, "/dev/null") for name in ("group", "hostname")),
    )
    engine.make_image("odd:1", entries=odd)
    vms.engine = engine
    runtime = await vms.open()
    await runtime.prepare(vms.spec("k", "sh", "-c", LINKS, image="odd:1"), "127.0.0.1\tlocalhost\n")
    held = await vms.until("k.1", Phase.CREATED, Phase.FAILED)
    assert held.phase is Phase.CREATED, held.message
    await runtime.start("k.1")
    ended = await vms.until("k.1", Phase.EXITED)
    lines = vms.printed("k.1").splitlines()
    assert lines == ["/data/home/work", "written", "1", "work", "main1", "NoNewPrivs:\t1"], (lines, ended)
    assert (vms.place.directory / "scratch/k.1/file").read_text() == "written\n"
    await runtime.remove("k.1")


async def test_an_export_that_stalls_fails(vms: Vms, engine: TestEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "STALL_TIMEOUT", 3.0)
    # An engine looks for groups in the image, and waits at a pipe.
    engine.make_image("pipe:1", entries=(entry("etc"), entry("etc/group", tarfile.FIFOTYPE)))
    vms.engine = engine
    runtime = await vms.open()
    await runtime.prepare(vms.spec("k", "true", image="pipe:1"), "127.0.0.1\tlocalhost\n")
    failed = await vms.until("k.1", Phase.FAILED)
    assert "the engine's export of the image has stalled" in failed.message
    await runtime.remove("k.1")
    assert not vms.left()
    assert not [entry.name for entry in vms.images.iterdir()]


async def test_what_is_left_of_exports_goes_and_damaged_roots_are_made_again(vms: Vms, engine: TestEngine) -> None:
    engine.make_image("whole:1")
    vms.engine = engine
    runtime = await vms.open()
    wanted = vms.spec("k", "true", image="whole:1")
    await runtime.prepare(wanted, "127.0.0.1\tlocalhost\n")
    await vms.ran(wanted)
    (root,) = vms.images.iterdir()
    content = root.read_bytes()
    own = f"retinue-root-{vms.place.agent_id}-{'0' * images.DIGITS}"
    # Of an agent whose name begins with this one's.
    other = f"retinue-root-{vms.place.agent_id}-b-{'0' * images.DIGITS}"
    client = engine.client()
    try:
        for name in (own, other):
            client.create_container("whole:1", ["-"], name=name)
        (vms.images / "0.partial").write_bytes(b"half")

        def left() -> set[str]:
            return {name.lstrip("/") for container in client.containers(all=True) for name in container["Names"]}

        for damaged in (b"", content[: len(content) // 2], b"\0" * 96 + content[96:]):
            root.write_bytes(damaged)
            runtime = await vms.open()
            await eventually(lambda: left() == {other})
            assert not (vms.images / "0.partial").exists()
            await runtime.prepare(replace(wanted, id=f"k{len(damaged)}.1"), "127.0.0.1\tlocalhost\n")
            held = await vms.until(f"k{len(damaged)}.1", Phase.CREATED, Phase.FAILED)
            assert held.phase is Phase.CREATED, held.message
            assert root.read_bytes() != damaged
            await runtime.kill(held.id)
            await vms.until(held.id, Phase.FAILED)
            await runtime.remove(held.id)
        client.remove_container(other)
    finally:
        client.close()
    assert not vms.left()


async def test_what_is_being_exported_is_not_swept(
    vms: Vms, engine: TestEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packer = tmp_path / "packer"
    packer.write_text(
        f'#!/bin/sh\n{images.PACKER} "$@" && touch {tmp_path}/packed\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.1; done\n'
    )
    packer.chmod(0o755)
    monkeypatch.setattr(images, "PACKER", str(packer))
    roots = images.ImageRoots(engine.host, vms.place.agent_id, vms.images, None, None)
    try:
        making = asyncio.create_task(roots.make(vms.spec("k", image=IMAGE), lambda _: None))
        await eventually((tmp_path / "packed").exists)
        sweeping = asyncio.create_task(roots.sweep())
        # It looks at what there is without a pause, and then waits for the export.
        for _ in range(100):
            await asyncio.sleep(0)
        assert not sweeping.done()
        (tmp_path / "go").touch()
        assert (await making).file.exists()
        await sweeping
    finally:
        await roots.close()
