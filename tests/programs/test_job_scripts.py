"""Job scripts as public computing centres show them, submitted as they are. What each means here is in
docs/how-to/from-slurm.md.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.programs.job_scripts import ARGUMENTS, CODES, SCRIPTS, WRITTEN

if TYPE_CHECKING:
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What cannot be had says so where the script meets it: in the file, and by the exit code.
SAID = {
    "mpi-srun": (1, "srun: error: --mpi=pmix: there is no PMI here; mpirun starts the processes of MPI"),
    "modules": (127, "module: command not found"),
    "broadcast": (None, "sbcast: command not found"),
}


@pytest.mark.parametrize("name", sorted(WRITTEN))
async def test_a_script_of_a_computing_centre(login: Shell, name: str) -> None:
    await asyncio.to_thread(shutil.copy, SCRIPTS / f"{name}.sh", login.directory)
    submitted = await login.run(f"sbatch --parsable --wait {name}.sh {ARGUMENTS.get(name, '')}", NOT_NAMED="leaks")
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
