"""Agents that die at any point, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.host.cgroups import Cgroups
from retinue.agent.host.launch_threads import SPARE
from retinue.agent.settings import Settings
from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.agent.manager_side import TOKEN, Conversation, Manager, attempt
from tests.integration.agent.process.test_process_runtime import HOSTS, printed, spec
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.agent.conftest import Backends, Place

HELD, RUNNING, EXITED = pb.ATTEMPT_STATE_HELD, pb.ATTEMPT_STATE_RUNNING, pb.ATTEMPT_STATE_EXITED
FAILED = pb.ATTEMPT_STATE_FAILED


class AgentProcess:
    """`retinue-agent run` as a process of its own."""

    def __init__(self, settings: Settings, manager: Manager) -> None:
        self.settings = settings
        self.manager = manager
        self.process: asyncio.subprocess.Process | None = None
        self.terms = 0

    async def start(self) -> str:
        """Starts it and returns the address it announced."""
        while not self.manager.enrollment.announced.empty():
            self.manager.enrollment.announced.get_nowait()
        self.process = await self._spawn()
        return await self.manager.announced()

    async def refused(self) -> tuple[int, str]:
        """Starts it, and returns how it ended and what it said."""
        self.process = await self._spawn(stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(120):
                _, words = await self.process.communicate()
        finally:
            await self.end(signal.SIGKILL)
        assert self.process.returncode is not None
        return self.process.returncode, words.decode()

    async def _spawn(self, stderr: int | None = None) -> asyncio.subprocess.Process:
        values = {
            "ID": self.settings.agent_id,
            "DATA_DIR": str(self.settings.state_dir),
            "SCRATCH_DIR": str(self.settings.scratch_dir),
            "MANAGER": ",".join(self.settings.managers),
            "JOIN_TOKEN": TOKEN,
            "CA_FINGERPRINT": self.settings.ca_fingerprint,
            "LISTEN": "127.0.0.1:0",
            "UNDERLAY_ADDRESS": "127.0.0.1",
            "LOG_LEVEL": "warning",
        }
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "retinue.agent.main",
            "run",
            env=dict(os.environ) | {f"RETINUE_AGENT_{name}": value for name, value in values.items()},
            stderr=stderr,
        )

    async def converse(self, address: str) -> tuple[Conversation, object]:
        self.terms += 1
        channel = self.manager.channel(self.settings.agent_id, address)
        conversation = Conversation(channel)
        await conversation.open(self.settings.agent_id, self.terms)
        return conversation, channel

    async def end(self, number: signal.Signals) -> int:
        """Sends a signal and waits for the end."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(60):
            return await self.process.wait()


@pytest.fixture
async def process(settings: Settings, manager: Manager) -> AsyncIterator[AgentProcess]:
    process = AgentProcess(settings, manager)
    yield process
    if process.process is not None:
        await process.end(signal.SIGKILL)


def groups(place: Place) -> set[str]:
    """Returns the control groups of attempts, without the spare ones."""
    return {name for name in Cgroups(place.agent_id).names() if not name.startswith(SPARE)}


def record(directory: Path, attempt_id: str) -> dict[str, object]:
    values = json.loads((directory / "state" / "attempts" / attempt_id / "record.json").read_text())
    assert isinstance(values, dict)
    return values


async def test_killed_agent_leaves_kernels_and_the_next_adopts_them(process: AgentProcess, place: Place) -> None:
    address = await process.start()
    manager, _channel = await process.converse(address)
    held = attempt("held", "echo", "early", session_id="one", goal=pb.GOAL_HELD)
    running = attempt("running", session_id="two")
    ending = attempt(
        "ending", "sh", "-c", "while [ ! -e /home/work/go ]; do sleep 0.02; done; exit 7", session_id="three"
    )
    await manager.snapshot(held, running, ending)
    await manager.until_state("held.1", HELD)
    await manager.until_state("running.1", RUNNING)
    await manager.until_state("ending.1", RUNNING)
    before = record(place.directory, "running.1")
    assert await process.end(signal.SIGKILL) == -signal.SIGKILL
    (place.directory / "scratch" / "ending.1" / "go").touch()
    monitor = record(place.directory, "ending.1")["monitor"]
    assert isinstance(monitor, dict)
    status_file = place.directory / "state" / "attempts" / "ending.1" / "status"
    await eventually(lambda: "exit-code" in status_file.read_text())
    down = time.time()

    address = await process.start()
    manager, _channel = await process.converse(address)
    assert manager.statuses["held.1"].state == HELD
    assert manager.statuses["running.1"].state == RUNNING
    status = await manager.until_state("ending.1", EXITED)
    assert (status.exit_code, status.reason) == (7, "EXITED")
    assert abs(status.end_time.ToDatetime().timestamp() - down) < 86_400
    assert status.end_time.seconds <= down
    assert record(place.directory, "running.1")["init"] == before["init"]
    held.goal = pb.GOAL_RUNNING
    await manager.snapshot(held, running)
    status = await manager.until_state("held.1", EXITED)
    assert (status.exit_code, status.log_size) == (0, 6)
    await manager.change(removed_attempt_ids=["held.1", "running.1"])
    await manager.until(lambda: manager.removed == {"held.1", "running.1", "ending.1"})
    assert await process.end(signal.SIGTERM) == 0
    assert not list((place.directory / "scratch").iterdir())
    assert not groups(place)


@pytest.mark.parametrize("delay", [0.004, 0.012, 0.020, 0.035, 0.060])
async def test_killed_at_any_point_of_creating(process: AgentProcess, place: Place, delay: float) -> None:
    names = [f"k{number}" for number in range(6)]
    wanted = [attempt(name, "sh", "-c", "echo once; exit 4", session_id=name) for name in names]
    address = await process.start()
    manager, channel = await process.converse(address)
    await manager.snapshot(*wanted)
    await asyncio.sleep(delay)
    await process.end(signal.SIGKILL)
    await channel.close()  # type: ignore[attr-defined]
    address = await process.start()
    manager, _channel = await process.converse(address)
    await manager.snapshot(*wanted)
    for name in names:
        status = await manager.until_state(f"{name}.1", EXITED, FAILED)
        output = place.directory / "state" / "attempts" / f"{name}.1" / "output.log"
        text = output.read_text() if output.exists() else ""
        if status.state == EXITED:
            assert (status.exit_code, text) == (4, "once\n")
        else:
            assert (status.reason, text) == ("START_FAILED", "")
            assert not status.HasField("exit_code")
    assert not groups(place)
    await manager.change(removed_attempt_ids=[f"{name}.1" for name in names])
    await manager.until(lambda: len(manager.removed) == len(names))
    assert not list((place.directory / "scratch").iterdir())


async def test_kernel_outlives_the_process_that_watches_it(backends: Backends) -> None:
    backend = await backends.open()
    await backend.prepare(
        spec("k", "sh", "-c", "trap 'echo late; exit 0' TERM; echo on; while :; do sleep 0.02; done"), HOSTS
    )
    await backend.start("k.1")
    monitor = record(backends.place.directory, "k.1")["monitor"]
    assert isinstance(monitor, dict)
    os.kill(monitor["pid"], signal.SIGKILL)
    async for piece in backend.output("k.1").stream(0, follow=True):
        assert piece.data == b"on\n"
        break
    backend = await backends.open()
    assert backend.observe()["k.1"].phase is Phase.RUNNING
    await backend.stop("k.1", 30)
    observed = await backends.until("k.1", Phase.EXITED)
    assert (observed.exit_code, observed.reason) == (None, "STOPPED")
    assert printed(backend, "k.1") == "on\nlate\n"
