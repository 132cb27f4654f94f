"""Job scripts as public computing centres show them, submitted as they are. What each means here is in
docs/how-to/from-slurm.md.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCRIPTS = Path(__file__).with_name("jobs")
# What each writes to its files, by their names; %j is the job's number.
WRITTEN: dict[str, dict[str, str]] = {
    "serial": {"serial-%j.out": "job serial, 1 task, 1 node\nsum 10\n"},
    "openmp": {"openmp.out": "threads 2\n"},
    "no-multithreading": {"no-multithreading.out": "step of 2 processors\n"},
    "tasks-on-nodes": {
        "tasks-on-nodes.out": "4 tasks on 2 nodes, 2(x2)\n"
        "task 0 is 0 on node 0\ntask 1 is 1 on node 0\ntask 2 is 0 on node 1\ntask 3 is 1 on node 1\n"
    },
    "tasks-anywhere": {"tasks-anywhere.out": "0: of 3\n1: of 3\n2: of 3\n"},
    "mpi-mpirun": {"mpi-mpirun.out": "size 2 sum 3\n"},
    "hybrid": {"hybrid.out": "rank 0, threads 2\nrank 1, threads 2\n"},
    "rendezvous": {"rendezvous.out": "2 hosts\n0 of 2 finds the first\n1 of 2 finds the first\n"},
    "array": {
        "array-1.out": "1 of 1 to 3: red\n",
        "array-2.out": "2 of 1 to 3: green\n",
        "array-3.out": "3 of 1 to 3: blue\n",
    },
    "array-throttled": {
        "array-throttled-0000.out": "0, one of 3\n",
        "array-throttled-0005.out": "10, one of 3\n",
        "array-throttled-0010.out": "20, one of 3\n",
    },
    "array-blocks": {
        "array-blocks-0.out": "0 to 9: 45\n",
        "array-blocks-1.out": "10 to 19: 145\n",
        "array-blocks-2.out": "20 to 29: 245\n",
    },
    "checkpoint": {"checkpoint.out": "saved\n"},
    "checkpoint-retry": {"checkpoint-retry.out": "step 0\ndone\n"},
    "preemptible": {"preemptible.out": "run 0\n"},
    "many-tasks": {"many-tasks.out": "1\n4\n9\n16\n"},
    "multi-prog": {"multi-prog.out": "controller\nworker 1 of 2\nworker 2 of 2\n"},
    "xargs": {"xargs.out": "".join(f"file {number}\n" for number in range(1, 6))},
    "scratch": {"scratch.out": "3 lines are back\n", "scratch.numbers": "1\n2\n3\n"},
    "environment": {"environment.out": "seed 42, secret stays outside\n"},
    "python": {"python.out": "python in job python\n"},
    "arguments": {"arguments.out": "2 arguments: a b\n"},
    "errors": {"errors.out": "this is output\n", "errors.err": "this is an error\n"},
    "mail": {"mail.out": "no mail\n"},
}
ARGUMENTS = {"arguments": "'a b' c"}
CODES = {"errors": 3}
# What cannot be had says so where the script meets it: in the file, and by the exit code.
SAID = {
    "mpi-srun": (1, "srun: error: --mpi=pmix: there is no PMI here; mpirun starts the processes of MPI"),
    "modules": (127, "module: command not found"),
    "broadcast": (None, "sbcast: command not found"),
}


@pytest.mark.parametrize("name", sorted(WRITTEN))
async def test_a_script_of_a_computing_centre(login: Shell, name: str) -> None:
    await asyncio.to_thread(shutil.copy, SCRIPTS / f"{name}.sh", login.directory)
    submitted = await login.run(
        f"sbatch --parsable --wait {name}.sh {ARGUMENTS.get(name, '')}", NOT_NAMED="leaks", USER="ann"
    )
    assert submitted.code == CODES.get(name, 0), submitted
    number = submitted.out.strip()
    for file, text in WRITTEN[name].items():
        assert (login.directory / file.replace("%j", number)).read_text() == text, file


@pytest.mark.parametrize("name", sorted(SAID))
async def test_a_script_is_told_what_cannot_be_had(login: Shell, name: str) -> None:
    code, words = SAID[name]
    await asyncio.to_thread(shutil.copy, SCRIPTS / f"{name}.sh", login.directory)
    submitted = await login.run(f"sbatch --wait {name}.sh")
    assert submitted.code == code or (code is None and submitted.code > 0), submitted
    assert words in (login.directory / f"{name}.out").read_text()


async def test_a_job_whose_path_leads_to_the_commands_of_the_login_machine(login: Shell) -> None:
    """Where nodes share a directory with them, `--export=ALL` takes their names along."""
    await login('cp -r "$(retinue slurm-commands)" commands')
    path = f"{login.directory}/commands:{login.environment['PATH']}"
    await login("sbatch --wait --output=job.out --wrap 'srun -n1 echo step; scontrol show hostnames'", PATH=path)
    assert (login.directory / "job.out").read_text() == "step\nmain1\n"
