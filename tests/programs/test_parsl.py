"""Parsl: blocks of its provider for Slurm as jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.login import INSTALLED

if TYPE_CHECKING:
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROGRAM = """
import os, time
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider

# Parsl's own default of the last one is a node of its own.
provider = SlurmProvider(
    partition="default", account="default", nodes_per_block=2, walltime="00:10:00", cores_per_node=1,
    launcher=SrunLauncher(), cmd_timeout=300, worker_init="echo before", exclusive=False,
)
provider.script_dir = os.getcwd()


def until(job, *names):
    while (found := provider.status([job])[0]).state.name not in names:
        time.sleep(0.2)
    return found.state.name


print(until(provider.submit("hostname", 1), "COMPLETED", "FAILED"))
print(until(provider.submit("exit 3", 1), "COMPLETED", "FAILED"))
endless = [provider.submit("sleep 1000", 1) for _ in range(2)]
until(endless[0], "RUNNING")
print(provider.cancel(endless), *(until(job, "CANCELLED") for job in endless))
"""


async def test_blocks_of_its_provider_are_jobs(login: Shell) -> None:
    (login.directory / "program.py").write_text(PROGRAM)
    said = await login(f"{INSTALLED}/python program.py")
    assert said == "COMPLETED\nFAILED\n[True, True] CANCELLED CANCELLED\n"
    (output,) = [text for file in login.directory.glob("*.stdout") if "main1" in (text := file.read_text())]
    assert {"before", "0: main1", "1: sub1"} <= set(output.splitlines())
