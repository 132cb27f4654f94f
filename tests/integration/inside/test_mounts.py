"""Mounts as users ask for them, what resource groups grant, and where keys are not."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from agent.kernel.places import FILES
from agent.kernel.ssh import HOST_KEY, ssh_files
from manager.identity.authority import Authority
from manager.lifecycle.secrets import SessionSecrets
from retinue.client.errors import CallError
from retinue.manager.v1 import fleet_service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client import Client
    from retinue.client.local.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def shared(client: Client, tmp_path: Path) -> AsyncIterator[Path]:
    """A directory that the default group grants to everybody for reading, and a part of it for writing."""
    await asyncio.to_thread(tmp_path.chmod, 0o755)
    (tmp_path / "team").mkdir()
    (tmp_path / "team").chmod(0o777)
    (tmp_path / "file").write_text("content\n")
    (tmp_path / "link").symlink_to("/etc")
    roots = [
        fleet_service_pb2.MountRoot(path=str(tmp_path)),
        fleet_service_pb2.MountRoot(path=str(tmp_path / "team"), writable=True),
    ]
    await client.resource_groups.update("default", mount_roots=roots)
    yield tmp_path
    await client.resource_groups.update("default", mount_roots=[])


async def printed(client: Client, session: str) -> str:
    return b"".join([chunk.data async for chunk in client.sessions.logs(session, "main1")]).decode()


async def test_the_same_mounts_in_every_kernel(client: Client, shared: Path) -> None:
    script = (
        "cat /data/file; ssh sub1 'cat /data/file; echo from $(hostname) >/team/sub'; cat /team/sub; echo x >/data/x"
    )
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", script],
        mounts=[(str(shared), "/data", False), (str(shared / "team"), "/team", True)],
        cluster_size=2,
        cluster_mode="multi-node",
        slots={"cpu": "2.5", "mem": "64m"},
    )
    await session.wait_ended(60)
    assert (await printed(client, session.id)).splitlines()[:3] == ["content", "content", "from sub1"]
    assert session.exit_code != 0
    assert [(mount.source, mount.writable) for mount in session.view.spec.mounts] == [
        (str(shared), False),
        (str(shared / "team"), True),
    ]


@pytest.mark.parametrize("source", ["/", "/etc", "/proc", "/var/run/docker.sock", "{}/../etc", "{}x"])
async def test_what_is_not_granted(client: Client, shared: Path, source: str) -> None:
    for writable in (False, True):
        with pytest.raises(CallError) as refused:
            await client.sessions.create(
                type="batch", command=["true"], mounts=[(source.format(shared), "/data", writable)]
            )
        assert "MOUNT_NOT_ALLOWED" in repr(refused.value) + str(vars(refused.value))
    with pytest.raises(CallError):
        await client.sessions.create(type="batch", command=["true"], mounts=[(str(shared), "/data", True)])


async def test_what_leads_elsewhere_ends_the_session(client: Client, shared: Path) -> None:
    session = await client.sessions.create(
        type="batch", command=["cat", "/data/passwd"], mounts=[(str(shared / "link"), "/data", False)]
    )
    await session.wait_ended(60)
    assert (session.view.reason, session.result) == ("MOUNT_REFUSED", "FAILURE")
    assert "a link leads out" in session.view.message


async def test_keys_are_nowhere_but_in_kernels(cluster: Cluster, client: Client) -> None:
    session = await client.sessions.create(
        type="interactive", cluster_size=2, cluster_mode="multi-node", slots={"cpu": "2.5", "mem": "64m"}
    )
    await session.wait("RUNNING", timeout=60)

    def found() -> list[str]:
        (authority_key,) = cluster.directory.rglob("ca.key")
        authority = Authority.load(authority_key.parent, lambda: dt.datetime.now(dt.UTC))
        secret = SessionSecrets(authority.derive_key("sessions")).of(session.id, 1)
        files = ssh_files(secret, ["main1", "sub1"])
        private = files.host_key[-64:-32]
        needles = [secret, private, files.identity.splitlines()[3]]
        needles += [text for needle in needles[:2] for text in (needle.hex().encode(), base64.b64encode(needle))]
        places = [path for path in cluster.directory.rglob("*") if path.is_file() and not path.is_symlink()]
        places += [path for name in ("environ", "cmdline") for path in Path("/proc").glob(f"[0-9]*/{name}")]
        hits = []
        for path in places:
            try:
                content = path.read_bytes()
            except OSError:
                continue
            hits += [str(path) for needle in needles if needle in content]
        # The search would have found them: there they are, inside.
        running = subprocess.run(["ps", "-eo", "pid,comm"], capture_output=True, text=True, check=True).stdout  # noqa: S607
        servers = [line.split()[0] for line in running.splitlines() if line.endswith("dropbear")]
        keys = set()
        for pid in servers:
            # Others may have servers too, which come and go.
            with contextlib.suppress(OSError):
                keys.add(Path(f"/proc/{pid}/root{FILES}/{HOST_KEY}").read_bytes())
        assert files.host_key in keys
        return hits

    try:
        assert not await asyncio.to_thread(found)
    finally:
        await session.terminate(force=True)
        await session.wait_ended(30)
