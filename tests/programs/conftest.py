"""Programs of others, unchanged, as users have them, against the shared cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from retinue.devtools.cluster import Cluster
from tests.support.eventually import NEVER
from tests.support.forked_programs import PROGRAM, Outcome

INSTALLED = Path("/var/cache/retinue/slurm/bin")
"""Where `scripts/install slurm` puts programs, here and for kernels that see the node's files."""


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs command lines by bash in a directory."""

    directory: Path
    environment: dict[str, str]

    async def run(self, command: str, **environment: str) -> Outcome:
        """Runs a command line to its end."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-eu", "-o", "pipefail", "-c", command),
            env={**self.environment, **environment},
            cwd=self.directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(NEVER):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Outcome(process.returncode, out.decode(), err.decode())

    async def __call__(self, command: str, **environment: str) -> str:
        """Runs a command line that has to end well; returns its output."""
        outcome = await self.run(command, **environment)
        assert outcome.code == 0, outcome
        return outcome.out


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    """A shell of a user of the cluster, in an empty home directory."""
    settings = cluster.settings
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RETINUE_", "NO_COLOR"))}
    environment = {
        **kept,
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
        "RETINUE_CONTEXTS": str(tmp_path / "contexts.yaml"),
        "HOME": str(tmp_path),
        "PATH": os.pathsep.join((str(PROGRAM.parent), kept["PATH"], str(INSTALLED))),
    }
    return Shell(tmp_path, environment)


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def nothing_left(cluster: Cluster) -> AsyncIterator[None]:
    """Ends what a test left, also after it failed."""
    yield
    async with cluster.client() as client:
        living = [session async for session in client.sessions.list()]
        await asyncio.gather(*(session.terminate(force=True) for session in living))
        await asyncio.gather(*(session.wait_ended(timeout=NEVER) for session in living))
