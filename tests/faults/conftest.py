"""Who runs `retinue` as a user would, and the directory that it shares with sessions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.manager.v1 import fleet_service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster


@pytest_asyncio.fixture(loop_scope="session")
async def shared(client: Client, tmp_path: Path) -> AsyncIterator[Path]:
    directory = tmp_path / "shared"
    directory.mkdir()
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o055)
    directory.chmod(0o777)
    roots = [fleet_service_pb2.MountRoot(path=str(tmp_path), writable=True)]
    await client.resource_groups.update("default", mount_roots=roots)
    yield directory
    await client.resource_groups.update("default", mount_roots=[])


@pytest.fixture
def environment(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    settings = cluster.settings
    return {
        **os.environ,
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
        "RETINUE_CONTEXTS": str(tmp_path / "contexts.yaml"),
    }
