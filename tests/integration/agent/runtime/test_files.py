"""Files that are put into kernels and read from them, for both kinds."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.errors import NotRunningError
from retinue.agent.inside.upload import UploadHeader
from retinue.agent.inside.workdir import MissingError
from tests.support.eventually import eventually
from tests.support.runtime_contract import listed

if TYPE_CHECKING:
    from retinue.agent.runtime.kernel import WorkDirectory
    from tests.integration.agent.runtime.conftest import Contract

SCRIPT = """while [ ! -e in/run.sh ]; do sleep 0.02; done
./in/run.sh
[ -O in ] && [ -O in/run.sh ] && echo mine
echo out > in/said
rm in/run.sh
sleep 1000"""
PROGRAM = b"#!/bin/sh\necho it runs\n"


async def put(files: WorkDirectory, path: str, content: bytes, *, part: int) -> None:
    announced = UploadHeader(path, len(content), 0o755, hashlib.sha256(content).digest())
    begun = await files.begin_upload(announced, resume=True)
    await begun.write(content[:part])
    await begun.close()
    resumed = await files.begin_upload(announced, resume=True)
    assert resumed.offset == part
    await resumed.write(content[part:])
    assert resumed.complete
    await resumed.store()
    await resumed.close()


async def read(files: WorkDirectory, path: str) -> bytes:
    file = await files.open(path)
    try:
        assert file.entry.path == path
        return await file.read(file.entry.size, 0)
    finally:
        file.close()


async def test_files_of_a_kernel(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", SCRIPT))
    with pytest.raises(NotRunningError):
        backend.kernel("k.1").files()
    await backend.start("k.1")
    # A later process of the agent knows the same directory.
    backend = await contract.open()
    files = backend.kernel("k.1").files()
    await files.make_directory("made", 0o750)
    await put(files, "in/run.sh", PROGRAM, part=5)
    await eventually(lambda: listed(files), lambda found: "in/run.sh" not in found)
    assert await contract.until_printed("k.1", "mine\n") == "it runs\nmine\n"
    assert await read(files, "in/said") == b"out\n"
    assert await listed(files) == {"in", "in/said", "made"}
    with pytest.raises(MissingError):
        await files.open("in/run.sh")
    # What has not arrived when the kernel ends goes with it.
    late = await files.begin_upload(UploadHeader("late", 9, 0, b"x" * 32), resume=True)
    await late.write(b"some")
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)
    with pytest.raises(NotRunningError):
        backend.kernel("k.1").files()
    await backend.remove("k.1")
    await late.close()
    assert not list((contract.place.directory / "scratch").iterdir())
    assert contract.left() == set()
