"""A directory of a million entries: it is listed whole, and no program of the session or of ours grows with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.client.command.conftest import SECONDS, Program
from tests.integration.client.command.sftp_sessions import listener, serve
from tests.integration.client.command.test_sftp_limits import logged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retinue.client.client import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20
ENTRIES = 1_000_000
LINKS = 50_000
"""Names of one file: file systems allow some ten thousand."""
LISTED = "is-listed"


@contextlib.contextmanager
def million(directory: Path) -> Iterator[None]:
    """Makes a directory of that many files, which cost next to nothing on the disk: most names are links."""
    directory.mkdir()
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in range(ENTRIES):
            name, first = f"entry-{number:07d}", number - number % LINKS
            if number == first:
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=here))
            else:
                os.link(f"entry-{first:07d}", name, src_dir_fd=here, dst_dir_fd=here)
        yield
    finally:
        os.close(here)
        shutil.rmtree(directory)


def peak(process: int) -> int:
    """Returns the most memory that a process has ever had, in bytes."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) << 10


def descendants(process: int) -> list[int]:
    """Returns the processes that one has started, and those that these have."""
    children = [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [*children, *(found for child in children for found in descendants(child))]


@pytest.mark.parametrize("way", ["direct", "stream"])
async def test_a_million_entries(files: Program, client: Client, cluster: Cluster, shared: Path, way: str) -> None:
    """By the node, and through the programs of agent and manager."""
    options = ("-o", "ProxyUseFdpass=no") if way == "stream" else ()
    programs = [agent.process.pid or 0 for agent in cluster.agents] + [cluster.manager.pid or 0]
    with contextlib.ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, million(shared / "many"))
        clients = await serve(client, files, shared, f"million-{way}", memory="64m")
        session = await client.sessions.get(f"million-{way}")
        (shared / LISTED).touch()
        before = {program: peak(program) for program in programs}
        process = await clients.start("sftp", *options, clients.host)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            # Unsorted; the second list comes when the first has.
            process.stdin.write(b"ls -1f many\nls -1\n")
            seen = 0
            async with asyncio.timeout(SECONDS):
                while LISTED.encode() not in (line := await process.stdout.readline()):
                    assert line, await process.communicate()
                    seen += b"many/entry-" in line
            assert seen == ENTRIES
            servers = descendants(listener(session.id))
            assert servers
            assert max(map(peak, servers)) < 32 * MIB
            assert {program: peak(program) - grown < 64 * MIB for program, grown in before.items()} == dict.fromkeys(
                programs, True
            )
            process.stdin.close()
            async with asyncio.timeout(SECONDS):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert "out of memory" not in await logged(client, session.id)
