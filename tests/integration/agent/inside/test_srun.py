"""`srun` in the kernels of a session, as its user has it; on the node's own root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.agent.output import printed
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCRIPT = r"""
srun sh -c 'echo $SLURM_PROCID $SLURM_NODEID $(hostname) $BACKENDAI_CLUSTER_HOST $GREETING $MINE $(pwd)' | sort
MINE=yes srun -l -n 3 -m cyclic --export=ALL,GREETING=bye sh -c 'echo $GREETING $MINE $SLURM_JOB_ID' | sort
echo input | srun cat
srun -w sub1 sh -c 'kill -USR1 $$' 2>&1; echo code $?
srun -K sh -c '[ $SLURM_PROCID != 1 ] || exit 3; sleep 1000' 2>/dev/null; echo code $?
ssh sub1 'srun -n 3 sh -c "echo from \$SLURM_SRUN_COMM_HOST \$(hostname)"' | sort
scontrol show hostnames
srun -O -n 60 sh -c 'echo $SLURM_PROCID' | sort -n | uniq | wc -l
srun -n 400 true 2>&1 | grep -c 'More processors requested than permitted'
"""


async def test_tasks_run_in_all_kernels_of_a_session(client: Client) -> None:
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", SCRIPT],
        environment={"GREETING": "hello"},
        cluster_size=3,
        cluster_mode="multi-node",
        # No node has room for all three.
        slots={"cpu": "2", "mem": "128m"},
    )
    await session.wait_ended(NEVER)
    number = session.view.number
    hosts = ["main1", "sub1", "sub2"]
    assert (await printed(client, session.id)).splitlines() == [
        *(f"{place} {place} {host} {host} hello /home/work" for place, host in enumerate(hosts)),
        *(f"{place}: bye yes {number}" for place in range(3)),
        *["input"] * 3,
        "srun: error: sub1: task 0: User defined signal 1",
        "code 138",
        # What is ended with SIGTERM.
        "code 143",
        *(f"from sub1 {host}" for host in hosts),
        *hosts,
        "60",
        "1",
    ]
    assert len({kernel.agent for kernel in session.kernels}) == 2


async def test_a_kernel_alone_has_it_too(client: Client) -> None:
    session = await client.sessions.create(
        type="batch",
        command=["srun", "-l", "sh", "-c", "echo $SLURM_NTASKS $SLURM_JOB_NODELIST $SLURM_STEP_ID; exit 4"],
        slots={"cpu": "1", "mem": "64m"},
    )
    await session.wait_ended(NEVER)
    assert session.exit_code == 4
    # Of two streams, either may be read first.
    assert sorted((await printed(client, session.id)).splitlines()) == [
        "0: 1 main1 0",
        "srun: error: main1: task 0: Exited with exit code 4",
    ]
