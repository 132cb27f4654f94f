"""A long list and a large file: they come whole, and no program of the session or of ours grows with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.client.command.inside.sftp_sessions import (
    MARKER,
    connected,
    connected_to,
    direct_port,
    listener,
    logged,
    serve,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retinue.client.client import Client
    from retinue.devtools.cluster import Cluster
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20
FEW, MANY = 500, 8_000
NAME = "n" * 240
"""Each name comes twice in an answer: many of them are 4 MiB of answers, and 2 MiB if a server keeps them."""
LARGE = 192 * MIB


@contextlib.contextmanager
def filled(directory: Path, entries: int) -> Iterator[None]:
    """Makes a directory of that many files, which cost next to nothing on the disk: most names are links."""
    directory.mkdir()
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.close(os.open(f"{NAME}0", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=here))
        for number in range(1, entries):
            os.link(f"{NAME}0", f"{NAME}{number}", src_dir_fd=here, dst_dir_fd=here)
        yield
    finally:
        os.close(here)
        shutil.rmtree(directory)


def peak(process: int) -> int:
    """Returns the most memory that a process has had since it was last forgotten, in bytes."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) << 10


def forget_peak(process: int) -> None:
    """Has the peak begin with what a process has now."""
    Path(f"/proc/{process}/clear_refs").write_text("5")


def descendants(process: int) -> list[int]:
    """Returns the processes that one has started, and those that these have."""
    children = [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [*children, *(found for child in children for found in descendants(child))]


class Conversation:
    """OpenSSH's client, and what it prints."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout

    async def printed(self, command: str) -> list[bytes]:
        """Returns the lines that a command prints: those of the next one come when it is done."""
        self._input.write(f"{command}\npwd\n".encode())
        lines = []
        while not (line := await self._output.readline()).startswith(b"Remote working directory"):
            assert line, await self._process.communicate()
            lines.append(line)
        return lines


@pytest.mark.parametrize("way", ["direct", "stream"])
async def test_nothing_grows_with_what_passes(
    files: Program, client: Client, cluster: Cluster, shared: Path, way: str
) -> None:
    """By the node, and through the programs of agent and manager."""
    programs = [agent.process.pid or 0 for agent in cluster.agents] + [cluster.manager.pid or 0]
    with contextlib.ExitStack() as stack:
        for name, entries in (("few", FEW), ("many", MANY)):
            await asyncio.to_thread(stack.enter_context, filled(shared / name, entries))
        with (shared / "large").open("wb") as file:
            file.truncate(LARGE)
        (shared / MARKER).touch()
        clients = await serve(client, files, shared, f"growing-{way}", memory="64m")
        session = await client.sessions.get(f"growing-{way}")
        node = {await direct_port(client, f"growing-{way}")}
        async with {
            "direct": connected_to(clients, node.__eq__),
            "stream": connected(clients, "-o", "ProxyUseFdpass=no"),
        }[way] as process:
            sftp = Conversation(process)
            # Unsorted: nothing of it waits in the client.
            assert sum(NAME.encode() in line for line in await sftp.printed("ls -1f few")) == FEW
            servers = descendants(await listener(session.id))
            assert servers
            before = sum(map(peak, servers))
            assert sum(NAME.encode() in line for line in await sftp.printed("ls -1f many")) == MANY
            assert sum(map(peak, servers)) - before < MIB
            for program in programs:
                forget_peak(program)
            had = {program: peak(program) for program in programs}
            await sftp.printed("get large /dev/null")
            # A third of it is more than any of them needs for all else that it does meanwhile.
            grown = {program: peak(program) - had[program] for program in programs}
            assert max(grown.values()) < LARGE / 3, grown
            assert sum(map(peak, servers)) - before < 4 * MIB
        assert "out of memory" not in await logged(client, session.id)
