"""Chains of jobs as public computing centres document them: scripts of the login machine that submit, wait and look."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAIN = r"""
cat >a.sh <<'SCRIPT'
#!/bin/bash
#SBATCH --job-name=first --time=5 --mem=50M
echo 1 >counted
SCRIPT
cat >b.sh <<'SCRIPT'
#!/bin/bash
#SBATCH --job-name=second --time=5 --mem=50M
echo $(($(cat counted) + $1)) >counted
SCRIPT
first=$(sbatch --parsable a.sh)
previous=$first
for step in 10 100; do
    previous=$(sbatch --parsable --dependency=afterok:$previous b.sh $step)
done
# As the page of sbatch has it: what is not quoted is the login machine's.
last=$(sbatch --parsable --dependency=afterok:${previous%%;*} <<SCRIPT
#!/bin/bash
#SBATCH -J third
#SBATCH -t 5
echo "third of $first: \$(cat counted) in \$SLURM_JOB_NAME" >result
SCRIPT
)
never=$(sbatch --parsable -d afternotok:$first --wrap 'touch never')
sbatch --quiet --wait -J cleaning --dependency=afterany:$last:$never --wrap 'rm counted'
echo $first $last $never
"""
FAILING = """
wrong=$(sbatch --parsable -J wrong --wrap 'exit 4')
after=$(sbatch --parsable -d afterok:$wrong --wrap 'touch never')
# It ends with the code of what it waits for.
sbatch --wait -Q -d afternotok:$wrong --wrap 'exit 6' || echo "ended with $?"
echo $wrong $after
"""
WAITING = """
running=$(sbatch --parsable -J running -t 5 --wrap 'sleep 1000')
held=$(sbatch --parsable -J held -H -t 1:00:00 --wrap true)
array=$(sbatch --parsable -J many -a 1-3 -d afterok:$running --wrap true)
until [ "$(squeue -h -j $running -o %T)" = RUNNING ]; do sleep 0.2; done
squeue --me -h -S i -o "%i %j %T %l %r %E"
scancel -u $USER -t PENDING
squeue --me --noheader --format=%A:%t
scancel --name=running -u $USER
until [ -z "$(squeue -h -j $running)" ]; do sleep 0.2; done
sacct -X -P -n -j $running,$held,$array --format=JobName,State%20
"""


async def test_each_step_waits_for_the_one_before(login: Shell) -> None:
    first, last, never = (await login(CHAIN)).split()
    assert (login.directory / "result").read_text() == f"third of {first}: 111 in third\n"
    assert not (login.directory / "never").exists()
    assert not (login.directory / "counted").exists()
    account = await login(f"sacct -j {first},{last},{never} --format=JobID,JobName,State,ExitCode -X -P")
    assert account.splitlines() == [
        "JobID|JobName|State|ExitCode",
        f"{first}|first|COMPLETED|0:0",
        f"{last}|third|COMPLETED|0:0",
        f"{never}|wrap|CANCELLED|0:0",
    ]


async def test_what_waits_for_a_job_that_fails(login: Shell) -> None:
    code, jobs = (await login(FAILING)).splitlines()
    assert code == "ended with 6"
    wrong, after = jobs.split()

    async def states() -> str:
        return await login(f"sacct -X -P -n -j {wrong},{after} -o State,ExitCode")

    await eventually(states, lambda text: text == "FAILED|4:0\nCANCELLED|0:0\n")
    assert not (login.directory / "never").exists()


async def test_what_waits_is_listed_and_cancelled(login: Shell) -> None:
    lines = (await login(WAITING)).splitlines()
    running = int(lines[0].split()[0])
    assert lines == [
        f"{running} running RUNNING 5:00 None (null)",
        f"{running + 1} held PENDING 1:00:00 JobHeldUser (null)",
        f"{running + 2}_[1-3] many PENDING UNLIMITED Dependency afterok:{running}(unfulfilled)",
        f"{running}:R",
        "running|CANCELLED",
        "held|CANCELLED",
        *["many|CANCELLED"] * 3,
    ]
