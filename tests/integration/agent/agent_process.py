"""Agents as processes of their own, and what they keep of attempts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from retinue.agent.host.cgroups import Cgroups
from retinue.agent.host.launch_threads import SPARE
from tests.integration.agent.manager_side import TOKEN, Conversation

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.agent.settings import Settings
    from tests.integration.agent.conftest import Place
    from tests.integration.agent.manager_side import Manager


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
        return await self.process.wait()


def groups(place: Place) -> set[str]:
    """Returns the control groups of attempts, without the spare ones."""
    return {name for name in Cgroups(place.agent_id).names() if not name.startswith(SPARE)}


def record(directory: Path, attempt_id: str) -> dict[str, object]:
    values = json.loads((directory / "state" / "attempts" / attempt_id / "record.json").read_text())
    assert isinstance(values, dict)
    return values
