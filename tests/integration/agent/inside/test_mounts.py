"""Mounts as users ask for them, what resource groups grant, and where keys are not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.agent.attempts import Mount, Owner
from retinue.agent.host.id_mapped import OwnerMaps
from retinue.agent.inside.provision import MountRefusedError, open_shared
from retinue.agent.kernel.core.ssh import HOST_KEY
from retinue.agent.kernel.paths import FILES
from retinue.client.errors import CallError, PermissionDenied
from retinue.manager.v1 import fleet_service_pb2
from tests.integration.agent.inside.keys import Keys, host_keys
from tests.integration.agent.output import printed
from tests.support.eventually import NEVER, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

EACH = 100
"""How often a mount shows the directory, and is refused, before the swaps end."""

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def shared(client: Client, tmp_path: Path) -> AsyncIterator[Path]:
    """A directory that the default group grants to every user for reading, and a part of it for writing."""
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
    await session.wait_ended(NEVER)
    assert (await printed(client, session.id)).splitlines()[:3] == ["content", "content", "from sub1"]
    assert session.exit_code != 0
    assert [(mount.source, mount.writable) for mount in session.view.spec.mounts] == [
        (str(shared), False),
        (str(shared / "team"), True),
    ]


OWNERS = {"home": (1500, 1501), "team": (1500, 99), "fixed": (70, 71)}


def make_directories(root: Path) -> None:
    """Makes a directory of each owner, with a file, that nobody else may read."""
    root.chmod(0o755)
    for name, numbers in OWNERS.items():
        (root / name).mkdir()
        (root / name / "file").write_text(f"{name}\n")
        for path in (root / name, root / name / "file"):
            os.chown(path, *numbers)
            path.chmod(0o700)


async def test_files_belong_to_whom_the_root_says(client: Client, tmp_path: Path) -> None:
    """Of the account, or of numbers of its own; in every kernel of the session, on each of its nodes."""
    await asyncio.to_thread(make_directories, tmp_path)
    roots = [
        fleet_service_pb2.MountRoot(path=str(tmp_path / name), writable=True, owner=owner)
        for name, owner in (
            ("home", fleet_service_pb2.MountOwner(account=True)),
            ("team", fleet_service_pb2.MountOwner(account=True, gid=99)),
            ("fixed", fleet_service_pb2.MountOwner(uid=70, gid=71)),
        )
    ]
    await client.resource_groups.update("default", mount_roots=roots)
    mounts = [(str(tmp_path / name), f"/m/{name}", True) for name in ("home", "team", "fixed")]
    script = "cat /m/*/file; for d in /m/*; do touch $d/$(hostname); done"
    try:
        with pytest.raises(CallError, match="retinue users update admin --file-owner UID:GID") as refused:
            await client.sessions.create(type="batch", command=["true"], mounts=mounts)
        assert refused.value.reason == "MOUNT_NOT_ALLOWED"
        await client.users.set_file_owner("admin", (1500, 1501))
        session = await client.sessions.create(
            type="batch",
            command=["sh", "-c", f"{script}; ssh sub1 '{script}'"],
            mounts=mounts,
            cluster_size=2,
            cluster_mode="multi-node",
            slots={"cpu": "2.5", "mem": "64m"},
        )
        await session.wait_ended(NEVER)
        assert await printed(client, session.id) == "fixed\nhome\nteam\n" * 2
    finally:
        await client.users.set_file_owner("admin", None)
        await client.resource_groups.update("default", mount_roots=[])
    for name, numbers in OWNERS.items():
        for kernel in ("main1", "sub1"):
            made = (tmp_path / name / kernel).stat()
            assert (made.st_uid, made.st_gid) == numbers


@pytest.mark.attack("forbidden-mounts")
@pytest.mark.parametrize("source", ["/", "/etc", "/proc", "/var/run/docker.sock", "{}/../etc", "{}x"])
async def test_what_is_not_granted(client: Client, shared: Path, source: str) -> None:
    # What is granted for reading is not granted for writing either.
    for mount in (
        *((source.format(shared), "/data", writable) for writable in (False, True)),
        (str(shared), "/d", True),
    ):
        with pytest.raises(PermissionDenied) as refused:
            await client.sessions.create(type="batch", command=["true"], mounts=[mount])
        assert refused.value.reason == "MOUNT_NOT_ALLOWED"


@pytest.mark.attack("links-in-mounts")
async def test_what_leads_elsewhere_ends_the_session(client: Client, shared: Path) -> None:
    session = await client.sessions.create(
        type="batch", command=["cat", "/data/passwd"], mounts=[(str(shared / "link"), "/data", False)]
    )
    await session.wait_ended(NEVER)
    assert (session.view.reason, session.result) == ("MOUNT_REFUSED", "FAILED")
    assert "a link leads out" in session.view.message


@pytest.mark.attack("links-in-mounts")
async def test_what_is_exchanged_meanwhile_leads_nowhere_else(tmp_path: Path) -> None:
    """A directory that is swapped for a link to elsewhere, while it is mounted: the mount shows it, or is refused."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for directory, name in ((root / "data", "inside"), (elsewhere, "outside")):
        directory.mkdir(parents=True)
        (directory / name).touch()
    (root / "link").symlink_to(elsewhere)
    outcomes: Counter[str] = Counter()
    enough = threading.Event()

    def swap() -> None:
        while not enough.is_set():
            for old, new in (("data", "kept"), ("link", "data"), ("data", "link"), ("kept", "data")):
                (root / old).rename(root / new)

    def mount() -> None:
        owner = Owner(60_000, 60_000)
        maps = OwnerMaps(owner, owner)
        try:
            while min(outcomes["inside"], outcomes["refused"]) < EACH:
                try:
                    shown = open_shared(Mount(str(root), "data", "/data", writable=False), maps)
                except MountRefusedError:
                    outcomes["refused"] += 1
                    continue
                try:
                    outcomes.update(os.listdir(f"/proc/self/fd/{shown}"))
                finally:
                    os.close(shown)
        finally:
            enough.set()
            maps.close()

    await asyncio.gather(asyncio.to_thread(mount), asyncio.to_thread(swap))
    assert not outcomes["outside"]


@pytest.mark.attack("keys-of-others", "secrets-in-logs")
async def test_keys_are_nowhere_but_in_kernels(cluster: Cluster, client: Client) -> None:
    canary = f"canary-{secrets.token_hex(16)}"
    session = await client.sessions.create(
        type="interactive",
        cluster_size=2,
        cluster_mode="multi-node",
        slots={"cpu": "2.5", "mem": "64m"},
        environment={"CANARY": canary},
    )
    await session.wait("RUNNING", timeout=NEVER)

    def told() -> list[str]:
        """Command lines and lines of logs that hold the value of a variable."""
        logs = [path for path in (cluster.directory / "logs").rglob("*") if path.is_file()]
        assert any(path.stat().st_size for path in logs)
        found = []
        for place in (*logs, *Path("/proc").glob("[0-9]*/cmdline")):
            # Processes of others come and go.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if canary.encode() in place.read_bytes():
                    found.append(str(place))
        return found

    def found() -> list[str]:
        keys = Keys(cluster, session)

        def inside() -> bool:
            running = subprocess.run(["ps", "-eo", "pid,comm"], capture_output=True, text=True, check=True).stdout  # noqa: S607
            servers = [line.split()[0] for line in running.splitlines() if line.endswith("dropbear")]
            return keys.files.host_key in host_keys(Path(f"/proc/{pid}/root{FILES}/{HOST_KEY}") for pid in servers)

        # The search would have found them: there they are, inside, once the servers that have them run.
        eventually_blocking(inside)
        return keys.found(cluster.directory)

    try:
        async with session.attach(["printenv", "CANARY"]) as command:
            assert b"".join([piece.data async for piece in command]).strip() == canary.encode()
        assert not await asyncio.to_thread(told)
        assert not await asyncio.to_thread(found)
    finally:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)
