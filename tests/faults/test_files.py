"""Files arrive whole when agents and managers are killed in the middle."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.faults.counting import agent_of
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.kernel.local_files import Copied
    from retinue.devtools.cluster import Cluster
    from retinue.devtools.process import ChildProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

# By the way to the node itself, machines hold some megabytes that its agent has not taken in.
STREAMED, DIRECT = 16 << 20, 96 << 20


async def interrupted(
    copy: Callable[[Callable[[str, int, int], None]], Awaitable[Copied]],
    process: ChildProcess,
    start: Callable[[], Awaitable[None]],
    whole: int,
) -> list[int]:
    """Copies a file, with a process killed in the middle and started again; how far it was at each step since."""
    middle = asyncio.Event()
    steps: list[int] = []

    def progress(_path: str, done: int, size: int) -> None:
        if middle.is_set():
            steps.append(done)
        elif done >= size // 3:
            process.signal(signal.SIGKILL)
            middle.set()

    copying = asyncio.ensure_future(copy(progress))
    try:
        async with asyncio.timeout(NEVER):
            await middle.wait()
            await process.kill()
            await start()
            assert (await copying).bytes == whole
    finally:
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
    return steps


@pytest.mark.parametrize("size", [STREAMED, DIRECT])
async def test_files_over_killed_agents_and_managers(
    client: Client, cluster: Cluster, tmp_path: Path, size: int
) -> None:
    content = os.urandom(size)
    (tmp_path / "there").write_bytes(content)
    session = await client.sessions.create(type="interactive", slots={"cpu": "0.5", "mem": "128m"}, termination_grace=0)
    await session.wait("RUNNING", timeout=NEVER)
    index = agent_of(cluster, session)
    files = session.files()
    if size == STREAMED:
        # As where the node is not reached.
        files._endpoint = ""  # noqa: SLF001

    def upload(name: str, progress: Callable[[str, int, int], None]) -> Awaitable[Copied]:
        return files.upload(tmp_path / "there", name, progress=progress)

    def download(name: str, progress: Callable[[str, int, int], None]) -> Awaitable[Copied]:
        return files.download(name, tmp_path / name, progress=progress)

    try:
        for name, process, start in (
            ("agent", cluster.agents[index].process, lambda: cluster.start_agent(index)),
            ("manager", cluster.manager, cluster.start_manager),
        ):
            steps = await interrupted(partial(upload, name), process, start, size)
            assert min(steps) > 1 << 20, "it does not start again"
            steps = await interrupted(partial(download, name), process, start, size)
            assert min(steps) > 1 << 20, "it does not start again"
            back = await asyncio.to_thread((tmp_path / name).read_bytes)
            assert hashlib.sha256(back).digest() == hashlib.sha256(content).digest()
        assert sorted(os.listdir(tmp_path)) == ["agent", "manager", "there"]
        assert sorted(entry.path for entry in await files.list()) == ["agent", "manager"]
    finally:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)
