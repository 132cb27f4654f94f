"""Files that are put into kernels and read from them, for both kinds."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.inside import workdir
from retinue.agent.inside.exec_session import NotRunningError
from retinue.agent.inside.upload import Announced, Arrival

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.backends.conftest import Contract

SCRIPT = """while [ ! -e in/run.sh ]; do sleep 0.02; done
./in/run.sh
[ -O in ] && [ -O in/run.sh ] && echo mine
echo out > in/said
rm in/run.sh
sleep 1000"""
PROGRAM = b"#!/bin/sh\necho it runs\n"


def put(home: Path, path: str, content: bytes, *, part: int) -> None:
    announced = Announced(path, len(content), 0o755, hashlib.sha256(content).digest())
    begun = Arrival(home, announced, resume=True)
    begun.write(content[:part])
    begun.close()
    resumed = Arrival(home, announced, resume=True)
    assert resumed.offset == part
    resumed.write(content[part:])
    resumed.store()
    resumed.close()


def read(home: Path, path: str) -> bytes:
    with workdir.opened(home) as directory:
        descriptor = workdir.open_regular(directory, path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


async def test_files_of_a_kernel(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", SCRIPT))
    with pytest.raises(NotRunningError):
        backend.work("k.1")
    await backend.release("k.1")
    # A later process of the agent knows the same directory.
    backend = await contract.open()
    home = backend.work("k.1")
    await asyncio.to_thread(put, home, "in/run.sh", PROGRAM, part=5)
    async with asyncio.timeout(20):
        while await asyncio.to_thread((home / "in" / "run.sh").exists):
            await asyncio.sleep(0.02)
    assert contract.printed("k.1") == "it runs\nmine\n"
    assert await asyncio.to_thread(read, home, "in/said") == b"out\n"
    # What has not arrived when the kernel ends goes with it.
    late = await asyncio.to_thread(Arrival, home, Announced("late", 9, 0, b"x" * 32), resume=True)
    await asyncio.to_thread(late.write, b"some")
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)
    with pytest.raises(NotRunningError):
        backend.work("k.1")
    await backend.remove("k.1")
    await asyncio.to_thread(late.close)
    assert not home.exists()
    assert not workdir.arrivals_of(home).exists()
    assert contract.left() == set()
