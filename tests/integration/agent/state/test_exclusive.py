"""A second process of an agent does not start, and does the first no harm."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import sys
from typing import TYPE_CHECKING

import pytest

from retinue.agent.state.exclusive import InUseError, lock
from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.agent.manager_side import attempt

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.agent.settings import Settings
    from tests.integration.agent.manager_side import Manager


async def test_a_second_process_does_not_start(
    process: AgentProcess, settings: Settings, manager: Manager, tmp_path: Path
) -> None:
    address = await process.start()
    conversation, _channel = await process.converse(address)
    await conversation.snapshot(attempt("k"))
    await conversation.until_state("k.1", pb.ATTEMPT_STATE_RUNNING)
    elsewhere = dataclasses.replace(settings, state_dir=tmp_path / "other", scratch_dir=tmp_path / "other" / "scratch")
    for second, expected in (
        (settings, f"another agent process uses the data directory {settings.state_dir}"),
        (elsewhere, f"another process of agent {settings.agent_id} runs on this node"),
    ):
        code, words = await AgentProcess(second, manager).refused()
        assert code != 0
        assert expected in words
    assert process.process is not None
    assert process.process.returncode is None
    again, _channel = await process.converse(address)
    assert again.statuses["k.1"].state == pb.ATTEMPT_STATE_RUNNING
    await again.snapshot()
    await again.until(lambda: again.removed == {"k.1"})


def test_a_lock_ends_with_the_process_that_has_it(tmp_path: Path) -> None:
    script = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(flush=True); input()"

    async def other() -> None:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(tmp_path), stdin=pipe, stdout=pipe
        )
        assert child.stdout is not None
        await child.stdout.readline()
        with pytest.raises(InUseError, match="taken"):
            lock(tmp_path, "taken", timeout=0)
        child.kill()
        await child.wait()

    asyncio.run(other())
    before = os.listdir("/proc/self/fd")
    locked = lock(tmp_path, "taken", timeout=0)
    with pytest.raises(InUseError, match="taken"):
        lock(tmp_path, "taken", timeout=0)
    os.close(locked)
    # Neither has left a descriptor.
    assert len(os.listdir("/proc/self/fd")) == len(before)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
