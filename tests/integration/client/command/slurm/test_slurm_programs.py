"""A program that was written for Slurm, as its users have it; others are in tests/programs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.login import login_machine

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

PROGRAM = """
import submitit

def square(number):
    print("of", number)
    return number * number, submitit.JobEnvironment().job_id

executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=5, mem_gb=0.2)
jobs = executor.map_array(square, [2, 3])
assert [job.result() for job in jobs] == [(4, jobs[0].job_id), (9, jobs[1].job_id)]
assert "of 3\\n" in jobs[1].stdout()
"""


@pytest.mark.asyncio(loop_scope="session")
async def test_functions_of_submitit_are_an_array(cluster: Cluster, client: Client) -> None:
    async with login_machine(cluster, client) as login:
        await asyncio.to_thread((login.directory / "program.py").write_text, PROGRAM)
        await login("/var/cache/retinue/slurm/bin/python program.py")
