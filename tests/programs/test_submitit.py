"""submitit: functions of Python as jobs and arrays of Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

SETUP = """
import sys, time
import submitit

executor = submitit.AutoExecutor(folder="logs")
assert executor.cluster == "slurm", executor.cluster
executor.update_parameters(timeout_min=5, mem_gb=0.2, cpus_per_task=1, slurm_array_parallelism=2)


def until(job, *states):
    while job.get_info(mode="force").get("State") not in states:
        time.sleep(0.2)
"""
ARRAY = """
def square(number):
    environment = submitit.JobEnvironment()
    print("of", number)
    print("beside", number, file=sys.stderr)
    return number * number, environment.job_id, environment.num_tasks

jobs = executor.map_array(square, [1, 2, 3])
main = jobs[0].job_id.partition("_")[0]
assert [job.job_id for job in jobs] == [f"{main}_{index}" for index in range(3)], jobs
assert [job.result() for job in jobs] == [(number * number, f"{main}_{number - 1}", 1) for number in (1, 2, 3)]
for number, job in enumerate(jobs, 1):
    assert f"of {number}\\n" in job.stdout(), job.stdout()
    assert f"beside {number}\\n" in job.stderr(), job.stderr()
    until(job, "COMPLETED")
print("array is well")
"""
ONE = """
def fail():
    raise ValueError("three is wrong")

failed = executor.submit(fail)
assert isinstance(failed.exception(), submitit.core.utils.FailedJobError)
assert "three is wrong" in str(failed.exception())
until(failed, "COMPLETED", "FAILED")
long = executor.submit(time.sleep, 1000)
until(long, "RUNNING")
long.cancel()
until(long, "CANCELLED by 0", "CANCELLED")
print("one is well")
"""
NODES = """
executor.update_parameters(nodes=2, tasks_per_node=2)

def place():
    environment = submitit.JobEnvironment()
    return environment.global_rank, environment.local_rank, environment.node, len(environment.hostnames)

job = executor.submit(place)
assert job.results() == [(0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 2), (3, 1, 1, 2)], job.results()
print("nodes are well")
"""


@pytest.mark.parametrize(("program", "said"), [(ARRAY, "array is"), (ONE, "one is"), (NODES, "nodes are")])
async def test_functions_are_jobs(login: Shell, program: str, said: str) -> None:
    (login.directory / "program.py").write_text(SETUP + program)
    ran = await login.run("/var/cache/retinue/slurm/bin/python program.py")
    assert ran.code == 0, ran.out + ran.err
    assert f"{said} well" in ran.out
