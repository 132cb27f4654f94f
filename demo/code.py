"""Part 4: lines of Python in main1 of a running session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from demo.stage import DemoError
from retinue.agent.kernel.build import BuildError
from retinue.agent.kernel.python_runtime import build_runtime

if TYPE_CHECKING:
    from demo.stage import Stage
    from retinue.client.aio import Session

_SECONDS = 60.0
_LINES = (
    "import os, socket",
    "hosts = os.environ['BACKENDAI_CLUSTER_HOSTS'].split(',')",
    "{host: socket.gethostbyname(host) for host in hosts}",
    "print(f'{len(hosts)} kernels, and this is {socket.gethostname()}')",
)


async def show(stage: Stage, session: Session) -> None:
    """Runs them one by one: what one sets, the next one finds. Raises DemoError, RetinueError, TimeoutError."""
    stage.heading("4. Python in main1 of a running session, line by line")
    try:
        await asyncio.to_thread(build_runtime)
    except BuildError as error:
        raise DemoError(str(error)) from error
    result = None
    async with asyncio.timeout(_SECONDS), session.code() as code:
        for line in _LINES:
            result = await code.execute(line)
            stage.say(f">>> {line}")
            for shown in (result.stdout or result.value or result.error_value).splitlines():
                stage.say(shown)
    expected = f"{len(session.kernels)} kernels, and this is main1\n"
    stage.check(result is not None and result.stdout == expected, "variables are kept from line to line")
