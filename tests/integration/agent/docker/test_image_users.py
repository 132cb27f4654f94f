"""Who a container runs as: the users that an image names, whatever it holds where they are named."""

from __future__ import annotations

import io
import re
import tarfile
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Mount, Owner, Phase
from tests.integration.agent.docker import accounts
from tests.integration.agent.docker.containers import contract
from tests.integration.agent.docker.engine import IMAGE, TestEngine
from tests.integration.agent.foreign_files import FOUND, OWNER, SCRIPT, made_by, make_files
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.runtime.beside import ran
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.agent.runtime.conftest import Contract

__all__ = ["contract"]


@pytest.mark.parametrize(
    ("user", "numbers"),
    [
        ("1234", "1234:0"),
        ("1234:99", "1234:99"),
        ("1234:0", "1234:0"),
        ("0", r"7\d{4}:60000"),
        ("root", r"7\d{4}:60000"),
    ],
)
async def test_user_of_an_image(contract: Contract, engine: TestEngine, user: str, numbers: str) -> None:
    client = engine.client()
    image = f"retinue-test/user:{user.replace(':', '-')}"
    try:
        source = client.create_container(IMAGE, "true")["Id"]
        client.commit(source, *image.split(":"), conf={"User": user, "Env": ["FROM_IMAGE=1"], "Entrypoint": ["false"]})
        client.remove_container(source)
        script = "echo $(id -u):$(id -g); echo $FROM_IMAGE $HOME; echo >/home/work/x"
        wanted = contract.spec("k", "sh", "-c", script, image=image)
        observed, output = await contract.ran(wanted)
        assert observed.exit_code == 0
        assert re.fullmatch(numbers + "\n1 /home/work\n", output)
    finally:
        client.remove_image(image)
        client.close()


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (["WORKDIR /srv/app"], "/srv/app"),
        (["WORKDIR /"], "/home/work"),
        # As the kernel's user it cannot be entered.
        (["WORKDIR /closed"], "/home/work"),
    ],
)
async def test_a_command_starts_where_its_image_says(
    contract: Contract, engine: TestEngine, lines: list[str], where: str
) -> None:
    app, closed = tarfile.TarInfo("srv/app"), tarfile.TarInfo("closed")
    app.type, app.mode, closed.type, closed.mode = tarfile.DIRTYPE, 0o755, tarfile.DIRTYPE, 0o700
    engine.make_image("directories:1", changes=lines, entries=(app, closed))
    observed, output = await contract.ran(contract.spec("k", "pwd", image="directories:1"))
    assert (observed.exit_code, output) == (0, f"{where}\n")
    asked = contract.spec("l", "pwd", image="directories:1", working_directory="/etc")
    observed, output = await contract.ran(asked)
    assert (observed.exit_code, output) == (0, "/etc\n")


async def test_a_user_of_an_image_by_name(contract: Contract, engine: TestEngine) -> None:
    accounts.make_image(engine, "users:app", "app")
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", accounts.SCRIPT, image="users:app"))
    assert (observed.exit_code, output.splitlines()) == (0, accounts.FOUND)


@pytest.mark.parametrize("user", ["app", "1234", "1001", "1234:0", "app:disk", "0"])
async def test_numbers_of_an_image_mean_nothing_in_a_mount(
    contract: Contract, engine: TestEngine, tmp_path_factory: pytest.TempPathFactory, user: str
) -> None:
    """Neither its user nor any of its groups, which its own files know it by."""
    image, shared = f"users:numbers-{user.replace(':', '-')}", make_files(tmp_path_factory.mktemp("shared"))
    accounts.make_image(engine, image, user)
    mounts = (Mount(str(shared), "", "/data", writable=True),)
    script = f"touch /any/file 2>/dev/null && echo shares\n{SCRIPT}"
    _, output = await contract.ran(contract.spec("k", "sh", "-c", script, image=image, mounts=mounts))
    assert output.splitlines() == ["shares"] * (user not in {"app:disk", "0"}) + FOUND
    assert made_by(shared) == {OWNER}


@pytest.mark.parametrize("user", ["app", "1234:0", "0"])
async def test_a_mount_without_a_map_has_a_kernel_run_as_its_owner_alone(
    contract: Contract, engine: TestEngine, untranslated: Path, user: str
) -> None:
    image, owner = f"users:owner-{user.replace(':', '-')}", Owner(1234, 4321)
    accounts.make_image(engine, image, user)
    mounts = (Mount(str(make_files(untranslated, owner)), "", "/data", writable=True, owner=owner),)
    script = f"id -u; id -G\n{SCRIPT}"
    _, output = await contract.ran(contract.spec("k", "sh", "-c", script, image=image, mounts=mounts))
    # These are its numbers, so what belongs to its user is its own.
    assert output.splitlines() == ["1234", "4321", "open", "own", "user-app", *FOUND[2:]]
    assert made_by(untranslated) == {owner}


async def test_commands_of_callers_run_as_the_kernels_user_whatever_its_image_says_by_then(
    contract: Contract, engine: TestEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A kernel that may write to /etc makes its user root there, and puts it into the groups of root and disk."""
    shared = make_files(tmp_path_factory.mktemp("shared"))
    (shared / "user-root").write_text("user-root\n")
    (shared / "user-root").chmod(0o600)
    etc = tarfile.TarInfo("etc")
    etc.type, etc.mode = tarfile.DIRTYPE, 0o777
    files = {"etc/passwd": accounts.USERS, "etc/group": b"web:x:99:\n"}
    engine.make_image("users:own-etc", changes=["USER app"], entries=(etc,), files=files)
    script = """
    cd /etc && sed s/1234:99/0:0/ passwd >p && mv p passwd && (cat group; echo root:x:0:app; echo disk:x:6:app) >g && mv g group
    touch ~/done; sleep 1000
    """
    mounts = (Mount(str(shared), "", "/data", writable=True),)
    backend = await contract.open()
    await backend.prepare(contract.spec("k", "sh", "-c", script, image="users:own-etc", mounts=mounts), HOSTS)
    await backend.start("k.1")
    await eventually((contract.place.directory / "scratch/k.1/done").exists)
    said = await ran(contract, "sh", "-c", "grep -c :0:0: /etc/passwd; id -u; id -G; cat /data/* 2>/dev/null")
    assert said.output.decode().splitlines() == ["3", "1234", "99", "open", "own"]
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)
    await backend.remove("k.1")
    assert not contract.left()


@pytest.mark.attack("powers-of-containers")
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
