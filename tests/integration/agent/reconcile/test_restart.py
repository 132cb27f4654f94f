"""Kernels whose watching process dies, and what the next agent makes of them."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from tests.integration.agent.agent_process import record
from tests.integration.agent.process.kernels import spec

if TYPE_CHECKING:
    from tests.integration.agent.conftest import Backends


async def test_kernel_outlives_the_process_that_watches_it(backends: Backends) -> None:
    backend = await backends.started(
        spec("k", "sh", "-c", "trap 'echo late; exit 0' TERM; echo on; while :; do sleep 0.02; done")
    )
    monitor = record(backends.place.directory, "k.1")["monitor"]
    assert isinstance(monitor, dict)
    os.kill(monitor["pid"], signal.SIGKILL)
    assert await backends.until_printed("k.1", "on\n") == "on\n"
    backend = await backends.open()
    assert backend.observe()["k.1"].phase is Phase.RUNNING
    await backend.stop("k.1", 30)
    observed = await backends.until("k.1", Phase.EXITED)
    assert (observed.exit_code, observed.reason) == (None, "STOPPED")
    assert backends.printed("k.1") == "on\nlate\n"
