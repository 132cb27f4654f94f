"""Engines that run the steps of a workflow as jobs of Slurm: Snakemake, by two of its executors, and Nextflow."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import NEVER, eventually
from tests.support.login import ACCOUNT

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

SNAKEFILE = """
rule all:
    input: "total"

rule square:
    output: "part/{number}"
    shell: "echo $(({wildcards.number} * {wildcards.number})) >{output}; echo of {wildcards.number} >&2"

rule total:
    input: expand("part/{number}", number=[1, 2, 3])
    output: "total"
    threads: 2
    shell: "cat {input} >{output}; nproc >>{output}"

rule wrong:
    output: "never"
    shell: "exit 3"

rule endless:
    output: "late"
    shell: "echo up >started; sleep 1000; touch {output}"
"""
# It looks after its jobs each 40 s unless told otherwise.
SLURM = "snakemake --executor slurm --slurm-init-seconds-before-status-checks 1"
# The lines of a profile, as many centres hand them out.
GENERIC = (
    "snakemake --executor cluster-generic --cluster-generic-cancel-cmd scancel --cluster-generic-status-cmd ./status.sh "
    "--cluster-generic-submit-cmd 'sbatch --parsable -J {rule} -c {threads} --mem={resources.mem_mb} -t {resources.runtime}'"
)
STATUS = """#!/bin/sh
case $(sacct -n -X -P -j "$1" -o State) in
    COMPLETED) echo success ;;
    "" | PENDING | CONFIGURING | RUNNING | COMPLETING) echo running ;;
    *) echo failed ;;
esac
"""
SMALL = "--jobs 4 --default-resources mem_mb=300 runtime=5 --latency-wait 30"
NEXTFLOW = r"""
process square {
  input: val number
  output: stdout
  script: "echo \$(($number * $number))"
}
process total {
  cpus 2
  publishDir '.', mode: 'copy'
  input: val squares
  output: path 'total'
  script: "printf '%s' ${squares.collect { it.trim() }.join(',')} >total; echo \" \$(nproc)\" >>total"
}
workflow { channel.of(1, 2, 3) | square | toSortedList | total }
"""
NEXTFLOW_CONFIG = """
process { executor = 'slurm'; memory = '200 MB'; time = '5 min'; queue = 'default' }
executor { pollInterval = '1 sec'; queueStatInterval = '1 sec'; submitRateLimit = '10 sec' }
"""


async def test_snakemake_with_its_executor_for_slurm(login: Shell, client: Client) -> None:
    (login.directory / "Snakefile").write_text(SNAKEFILE)
    ran = await login.run(f"{SLURM} {SMALL}")
    assert ran.code == 0, ran.out + ran.err
    assert (login.directory / "total").read_text() == "1\n4\n9\n2\n"
    comments = [session.view.spec.labels["comment"] async for session in client.sessions.list(show_ended=True)]
    assert "rule_square_wildcards_2" in comments
    assert "rule_total" in comments


async def test_snakemake_says_which_job_failed_and_ends_what_runs(login: Shell, client: Client) -> None:
    (login.directory / "Snakefile").write_text(SNAKEFILE)
    failed = await login.run(f"{SLURM} {SMALL} never")
    assert failed.code == 1
    assert "status is: 'FAILED'" in failed.err
    running = await login.start(f"exec {SLURM} {SMALL} late")
    await eventually((login.directory / "started").exists)
    running.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        output, _ = await running.communicate()
    assert running.returncode == 1, output.decode()
    left = [session async for session in client.sessions.list()]
    for session in left:
        await session.wait_ended(NEVER)
        assert session.result == "CANCELLED"


async def test_snakemake_with_commands_of_its_profile(login: Shell, client: Client) -> None:
    """Its scripts are in a directory that only the user may read; so jobs run as that user."""
    (login.directory / "Snakefile").write_text(SNAKEFILE)
    (login.directory / "status.sh").write_text(STATUS)
    (login.directory / "status.sh").chmod(0o755)
    ran = await login.run(f"{GENERIC} {SMALL}")
    assert ran.code == 0, ran.out + ran.err
    total = login.directory / "total"
    assert (total.read_text(), total.stat().st_uid) == ("1\n4\n9\n2\n", ACCOUNT)
    failed = await login.run(f"{GENERIC} {SMALL} never")
    assert failed.code == 1
    assert "Error in rule wrong" in failed.err
    running = await login.start(f"exec {GENERIC} {SMALL} late")
    await eventually((login.directory / "started").exists)
    running.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        output, _ = await running.communicate()
    assert running.returncode == 1, output.decode()
    for session in [session async for session in client.sessions.list()]:
        await session.wait_ended(NEVER)
        assert session.result == "CANCELLED"


async def test_nextflow(login: Shell) -> None:
    (login.directory / "main.nf").write_text(NEXTFLOW)
    (login.directory / "nextflow.config").write_text(NEXTFLOW_CONFIG)
    home = {"NXF_HOME": str(login.directory / ".nextflow"), "NXF_OFFLINE": "true", "NXF_ANSI_LOG": "false"}
    ran = await login.run("/var/cache/retinue/nextflow/bin/nextflow run main.nf", **home)
    assert ran.code == 0, ran.out + ran.err
    assert (login.directory / "total").read_text() == "1,4,9 2\n"
