"""Directories of the node inside kernels of every kind, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Mount, Phase
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


async def test_files_of_the_agent_are_refused(contract: Contract) -> None:
    backend = await contract.open()
    wanted = contract.spec("k", "true", mounts=(Mount(str(contract.place.directory), "state", "/data"),))
    await backend.prepare(wanted, HOSTS)
    observed = await contract.until("k.1", Phase.FAILED)
    assert (observed.reason, "files of the agent" in observed.message) == ("MOUNT_REFUSED", True)
    await backend.remove("k.1")
