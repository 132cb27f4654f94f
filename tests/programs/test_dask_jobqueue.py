"""dask-jobqueue: a scheduler, a client and workers as the tasks of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROGRAM = """
from dask.distributed import Client
from dask_jobqueue.slurm import SLURMRunner

with SLURMRunner(scheduler_options={"dashboard": False, "interface": "eth0"}) as runner, Client(runner) as client:
    client.wait_for_workers(runner.n_workers)
    squares = client.map(lambda number: number * number, range(100))
    print("sum", client.submit(sum, squares).result(), "of", runner.n_workers)
"""


async def test_the_runner_finds_its_workers(login: Shell) -> None:
    (login.directory / "program.py").write_text(PROGRAM)
    ran = await login.run(
        "sbatch --wait --nodes=2 --ntasks=4 --cpus-per-task=1 --mem=800M --time=5 --output=job.out "
        "--wrap 'srun /var/cache/retinue/slurm/bin/python program.py'"
    )
    assert (ran.code, "sum 328350 of 2" in (login.directory / "job.out").read_text()) == (0, True), ran
