"""Directories of the node inside kernels of every kind, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Mount, Owner, Phase
from retinue.agent.host.users import UserRange
from tests.integration.agent.foreign_files import FOUND, OWNER, made_by, make_files
from tests.integration.agent.foreign_files import SCRIPT as FILES
from tests.integration.agent.opened import HOSTS

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract

SCRIPT = """
cat /data/deep/in/file /home/work/shared/file
(echo x > /data/deep/in/new) 2>/dev/null || echo read-only
echo written > /home/work/shared/new && echo wrote
grep -E ' (/data/deep/in|/home/work/shared) ' /proc/mounts | cut -d' ' -f2,4 | cut -d, -f1-3
"""


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shared")
    (root / "inner").mkdir()
    (root / "inner/file").write_text("content\n")
    (root / "inner").chmod(0o777)
    (root / "within").symlink_to("inner")
    (root / "without").symlink_to("/etc")
    (root / "above").symlink_to("../..")
    (root / "plain").touch()
    return root


async def test_mounts(contract: Contract, shared: Path) -> None:
    mounts = (
        Mount(str(shared), "within", "/data/deep/in"),
        Mount(str(shared), "inner", "/home/work/shared", writable=True),
    )
    observed, output = await contract.ran(contract.spec("k", "sh", "-c", SCRIPT, mounts=mounts))
    assert observed.exit_code == 0
    assert output.splitlines() == [
        "content",
        "content",
        "read-only",
        "wrote",
        "/data/deep/in ro,nosuid,nodev",
        "/home/work/shared rw,nosuid,nodev",
    ]
    # What was written stays, and nothing else of it.
    assert (shared / "inner/new").read_text() == "written\n"
    assert str(shared) not in await asyncio.to_thread(Path("/proc/self/mountinfo").read_text)
    assert not contract.left()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("without", "a link leads out"),
        ("above", "a link leads out"),
        ("../other", "a link leads out"),
        ("missing", "there is no such directory"),
        ("plain", "it is not a directory"),
    ],
)
async def test_refused(contract: Contract, shared: Path, path: str, said: str) -> None:
    backend = await contract.open()
    wanted = contract.spec("k", "true", mounts=(Mount(str(shared), path, "/data"),))
    await backend.prepare(wanted, HOSTS)
    observed = await contract.until("k.1", Phase.FAILED)
    assert observed.reason == "MOUNT_REFUSED"
    assert said in observed.message
    await backend.remove("k.1")
    assert not contract.left()


@pytest.mark.parametrize("owner", [OWNER, Owner(1234, 4321)])
async def test_files_of_the_owner_are_the_kernels_own(
    contract: Contract, tmp_path_factory: pytest.TempPathFactory, owner: Owner
) -> None:
    shared = make_files(tmp_path_factory.mktemp("shared"), owner)
    mounts = (Mount(str(shared), "", "/data", writable=True, owner=owner),)
    _, output = await contract.ran(contract.spec("k", "sh", "-c", f"id -u\n{FILES}", mounts=mounts))
    uid, *lines = output.splitlines()
    assert int(uid) in UserRange()
    # A file of the owner's user by another group is its own as well.
    assert lines == (FOUND if owner == OWNER else ["open", "own", "user-app", *FOUND[2:]])
    assert made_by(shared) == {owner}


async def test_owners_of_several_mounts(
    contract: Contract, tmp_path_factory: pytest.TempPathFactory, untranslated: Path
) -> None:
    """Each mount has one of its own; only where none can be translated, they have to agree."""
    first, second, other = Owner(1234, 4321), OWNER, Owner(1235, 1235)
    shared = [make_files(tmp_path_factory.mktemp("shared"), owner) for owner in (first, second)]
    script = "cat /first/own /second/own; touch /first/new /second/new; mkdir /first/kept /second/kept"
    mounts = [
        Mount(str(directory), "", target, writable=True, owner=owner)
        for directory, target, owner in zip(shared, ("/first", "/second"), (first, second), strict=True)
    ]
    _, output = await contract.ran(contract.spec("k", "sh", "-c", script, mounts=tuple(mounts)))
    assert (output, *map(made_by, shared)) == ("own\nown\n", {first}, {second})

    make_files(untranslated, first)
    (untranslated / "theirs").mkdir()
    mounts.append(Mount(str(untranslated), "", "/third", writable=True, owner=first))
    wanted = contract.spec("l", "sh", "-c", f"id -u\n{script.replace('/first', '/third')}", mounts=tuple(mounts))
    (shared[1] / "new").unlink()
    (shared[1] / "kept").rmdir()
    _, output = await contract.ran(wanted)
    assert (output, made_by(untranslated), made_by(shared[1])) == ("1234\nown\nown\n", {first}, {second})

    mounts.append(Mount(str(untranslated), "theirs", "/fourth", owner=other))
    backend = await contract.open()
    await backend.prepare(contract.spec("m", "true", mounts=tuple(mounts)), HOSTS)
    observed = await contract.until("m.1", Phase.FAILED)
    assert observed.reason == "MOUNT_REFUSED"
    assert "its files belong to 1235:1235, but the kernel runs as 1234:4321" in observed.message
    await backend.remove("m.1")
    assert not contract.left()


async def test_files_of_the_agent_are_refused(contract: Contract) -> None:
    backend = await contract.open()
    wanted = contract.spec("k", "true", mounts=(Mount(str(contract.place.directory), "state", "/data"),))
    await backend.prepare(wanted, HOSTS)
    observed = await contract.until("k.1", Phase.FAILED)
    assert (observed.reason, "files of the agent" in observed.message) == ("MOUNT_REFUSED", True)
    await backend.remove("k.1")
