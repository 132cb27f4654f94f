"""The clients of `clients/`, in other languages and made from the protos alone, against a manager and two nodes;
`make test-clients` builds them.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from tests.integration.clients.built import ROOT, environment_of, needs

if TYPE_CHECKING:
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

# By name, its folder and how it is started there. Those that are built by their program are started by it,
# as their README says.
CLIENTS = {
    "connect": ("typescript", ["npm", "run", "--silent", "connect"]),
    "go": ("go", ["./client"]),
    "grpc-js": ("typescript", ["npm", "run", "--silent", "grpc-js"]),
    "java": ("java", ["mvn", "--quiet", "--batch-mode", "exec:java"]),
    "rust": ("rust", ["target/debug/retinue-client"]),
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_the_scenario(cluster: Cluster, name: str) -> None:
    folder, command = CLIENTS[name]
    needs(folder)
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT / "clients" / folder,
        env=environment_of(cluster),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
            await process.wait()
    printed = output.decode(errors="replace")
    assert process.returncode == 0, printed
    assert "scenario: ok" in printed
