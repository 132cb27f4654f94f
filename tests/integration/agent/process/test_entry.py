"""The helper that joins a kernel ends with what it was for, also when its end cannot be waited for."""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from retinue.agent.host.processes import Process
from retinue.agent.process import entry
from retinue.agent.process.entry import Confinement
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "3600"]) as started:
        yield started
        started.kill()


async def test_a_helper_whose_end_cannot_be_waited_for_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]
) -> None:
    ours, theirs = socket.socketpair()
    with theirs:

        def refused(_: object) -> None:
            raise OSError(11, "no thread is left")

        monkeypatch.setattr(entry, "spawn", lambda *_: (child, ours))
        monkeypatch.setattr(entry, "_reap", refused)
        confinement = Confinement(0, 0, b"", ())
        wire = await entry.enter(tmp_path, Process(1, 1), confinement, lambda _: {})
        await wire.channel.close()
        await wire.ended()
        assert child.wait(NEVER) == -9
