"""Slurm's commands on a real cluster: what programs that were written for Slurm call, and what they read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.client.command.conftest import Program
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")
SMALL = "--mem=64M"


async def submitted(retinue: Program, *words: str, **environment: str) -> int:
    made = await retinue("sbatch", SMALL, *words, **environment)
    assert made.code == 0, made.err
    found = re.fullmatch(r"Submitted batch job (\d+)\n", made.out)
    assert found, made.out
    return int(found[1])


async def test_a_job_from_its_submission_to_its_account(retinue: Program, client: Client, tmp_path: Path) -> None:
    script = tmp_path / "Job One.sh"
    script.write_text("#!/bin/bash\n#SBATCH -J 'Job One' -t 5 --hold --wckey=x\necho $1 $FROM_HERE; exit 3\n")
    number = await submitted(retinue, str(script), "--time=1", FROM_HERE="here")
    listed = await retinue("squeue", "-h", "-j", str(number), "-o", "%i|%t|%r|%j|%l")
    assert listed.out == f"{number}|PD|JobHeldUser|Job One|5:00\n"
    await client.sessions.update(str(number), hold=False)
    session = await client.sessions.get(str(number))
    await session.wait_ended(NEVER)
    assert b"".join([chunk.data async for chunk in session.logs()]) == b"--time=1 here\n"
    assert (await retinue("squeue", "-h", "-j", str(number))).out == ""
    account = await retinue("sacct", "-n", "-X", "-P", "-j", str(number), "-o", "JobIDRaw,State,ExitCode,JobName")
    assert account.out == f"{number}|FAILED|3:0|Job One\n"
    named = await retinue("sacct", "-X", "--parsable2", "--noheader", "--format=JobIdRaw,State", "--name", "Job One")
    assert f"{number}|FAILED" in named.out.splitlines()
    steps = await retinue("sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", str(number))
    agent = session.kernels[0].agent
    assert steps.out == f"JobID|State|NodeList\n{number}|FAILED|{agent}\n{number}.batch|FAILED|{agent}\n"
    for step, lines in (("batch", f"{number}.batch\n"), ("0", ""), ("extern", "")):
        assert (await retinue("sacct", "-n", "-P", "-o", "JobID", "-j", f"{number}.{step}")).out == lines
    of_srun = await retinue("scancel", f"{number}.0")
    assert (of_srun.code, "a step of srun" in of_srun.err) == (1, True)


async def test_an_array_is_one_number(retinue: Program, client: Client) -> None:
    made = await retinue("sbatch", SMALL, "--parsable", "-H", "-a", "2,5-6", "--wrap", "true")
    number = int(made.out)
    together = await retinue("squeue", "-h", "-j", str(number), "-o", "%i %t")
    assert together.out == f"{number}_[2,5-6] PD\n"
    each = await retinue("squeue", "-h", "-r", "-j", f"{number}_[5-6]", "-o", "%i %F %K %A")
    assert each.out == f"{number}_5 {number} 5 {number + 1}\n{number}_6 {number} 6 {number + 2}\n"
    assert (await retinue("scancel", f"{number}_5")).code == 0
    states = await retinue("sacct", "-n", "-X", "-P", "-j", str(number), "-o", "JobID,State")
    assert states.out == f"{number}_2|PENDING\n{number}_5|CANCELLED\n{number}_6|PENDING\n"
    assert (await retinue("scancel", str(number))).code == 0
    states = await retinue("sacct", "-n", "-X", "-P", "-j", str(number), "-o", "State")
    assert states.out == "CANCELLED\n" * 3
    # Those that have ended are left alone, and those that never were are not.
    assert (await retinue("scancel", str(number))).code == 0
    wrong = await retinue("scancel", "999999999")
    assert (wrong.code, wrong.err) == (
        1,
        "scancel: error: Kill job error on job id 999999999: Invalid job id specified\n",
    )
    unknown = await retinue("squeue", "-j", "999999999")
    assert (unknown.code, unknown.err) == (1, "slurm_load_jobs error: Invalid job id specified\n")


async def test_a_signal_reaches_the_script_or_what_it_started(retinue: Program, client: Client) -> None:
    script = "trap 'echo script; kill $! ; exit 7' USR1; sh -c 'trap \"echo started\" USR2; echo up; while :; do sleep 0.1; done' & wait; wait"
    number = await submitted(retinue, "--wrap", script)
    session = await client.sessions.get(str(number))

    async def printed(text: bytes) -> None:
        async def seen() -> bool:
            return text in b"".join([chunk.data async for chunk in session.logs()])

        await session.wait("RUNNING", timeout=NEVER)
        await eventually(seen)

    await printed(b"up\n")
    assert (await retinue("scancel", "--signal", "SIGUSR2", str(number))).code == 0
    await printed(b"started\n")
    assert (await retinue("scancel", "-b", "-s", "10", str(number))).code == 0
    await session.wait_ended(NEVER)
    assert session.exit_code == 7
    late = await retinue("scancel", "-s", "USR1", str(number))
    assert (late.code, "already completing or completed" in late.err) == (1, True)


async def test_what_is_submitted_from_standard_input_and_waited_for(retinue: Program) -> None:
    waited = await retinue("sbatch", SMALL, "--wait", "--wrap", "exit 5")
    assert waited.code == 5
    tested = await retinue("sbatch", SMALL, "--test-only", "--wrap", "true")
    assert (tested.code, tested.out) == (0, "")
    refused = await retinue("sbatch", "--exclusive", "--frob=1", "--licenses=a", "--wrap", "true")
    assert refused.code == 1
    assert [line.split()[2] for line in refused.err.splitlines()] == ["--exclusive", "--licenses", "--frob"]
    warned = await retinue("sbatch", SMALL, "--ignore-unknown", "--exclusive", "--hold", "--parsable", "--wrap", "true")
    assert (warned.code, warned.out.strip().isdigit()) == (0, True)
    assert "warning: left out: --exclusive" in warned.err
    assert (await retinue("scancel", "--me", "-t", "PD")).code == 0
    assert (await retinue("squeue", "-h", "--me", "-t", "PD")).out == ""


async def test_a_script_whose_interpreter_is_missing_says_so(retinue: Program, client: Client, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#! /no/such/shell -l\necho x\n")
    made = await retinue("sbatch", SMALL, "--parsable", "--wait", str(script))
    assert made.code == 127
    said = b"".join([chunk.data async for chunk in client.sessions.logs(made.out.strip())])
    assert said == b"retinue: job.sh cannot start: /no/such/shell is not in this image or on this node\n"


async def test_what_is_shown_of_jobs_nodes_and_partitions(retinue: Program, client: Client) -> None:
    number = await submitted(retinue, "-H", "-N", "2", "--ntasks-per-node=2", "--comment=x y", "--wrap", "sleep 300")
    shown = dict(
        word.partition("=")[::2] for word in (await retinue("scontrol", "-o", "show", "job", str(number))).out.split()
    )
    expected = {"JobId": str(number), "JobState": "PENDING", "Reason": "JobHeldUser", "NumNodes": "2", "NumTasks": "4"}
    assert expected.items() <= shown.items()
    assert (await retinue("scontrol", "update", f"JobId={number}", "Priority=50")).code == 0
    assert (await client.sessions.get(str(number))).view.spec.priority == 50
    refused = await retinue("scontrol", "update", f"JobId={number}", "TimeLimit=5", "Name=x", "Dependency=", "Frob=1")
    assert refused.code == 1
    assert "error: dependency (scancel it, and sbatch --dependency; " in refused.err
    assert ", frob, name (retinue rename gives its session another name), timelimit (scancel it, " in refused.err
    assert (await retinue("scontrol", "release", str(number))).code == 0
    assert (await retinue("scontrol", "wait_job", str(number))).code == 0
    used = await retinue("sinfo", "-h", "-o", "%P %D %t %C")
    assert re.fullmatch(r"default\* 1 alloc 4/0/0/4\ndefault\* 1 idle 0/4/0/4\n|default\* 2 mix 4/4/0/8\n", used.out)
    script = await retinue("scontrol", "write", "batch_script", str(number), "-")
    assert script.out == "#!/bin/sh\nsleep 300\n"
    assert (await retinue("scancel", str(number))).code == 0
    await (await client.sessions.get(str(number))).wait_ended(NEVER)

    group = dict(word.partition("=")[::2] for word in (await retinue("scontrol", "show", "partition")).out.split())
    assert (group["PartitionName"], group["TotalCPUs"], group["TotalNodes"]) == ("default", "8", "2")
    agent = group["Nodes"].split(",")[0]
    node = await retinue("scontrol", "show", "node", agent)
    assert f"NodeName={agent} Arch=x86_64" in node.out
    assert (await retinue("scontrol", "update", f"NodeName={agent}", "State=DRAIN", "Reason=test")).code == 0
    drained = await retinue("sinfo", "-h", "-N", "-n", agent, "-o", "%N %T")
    assert drained.out == f"{agent} drained\n"
    assert (await retinue("scontrol", "update", f"NodeName={agent}", "State=RESUME")).code == 0
    assert (await retinue("sinfo", "-h", "-t", "drain", "-o", "%N")).out == ""
    assert (await retinue("scontrol", "show", "job", "999999999")).code == 1


async def test_srun_outside_of_a_job_runs_in_a_session_of_its_own(retinue: Program, client: Client) -> None:
    ran = await retinue(
        "srun", SMALL, "-J", "step", "sh", "-c", "echo $FROM_HERE; echo wrong >&2; exit 4", FROM_HERE="x"
    )
    assert (ran.code, ran.out, ran.err) == (4, "x\n", "wrong\n")
    number = await submitted(retinue, "--wrap", "sleep 300")
    await (await client.sessions.get(str(number))).wait("RUNNING", timeout=NEVER)
    assert (await retinue("srun", "--jobid", str(number), "hostname")).out == "main1\n"
    assert (await retinue("scancel", str(number))).code == 0


async def test_a_job_begins_where_it_was_submitted_if_nodes_share_that(
    retinue: Program, client: Client, shared: Path
) -> None:
    async def printed(directory: Path, *words: str) -> str:
        started = await Program(retinue.environment, directory).start(
            "sbatch", SMALL, "--parsable", "--wait", *words, "--wrap", 'echo "$PWD $SLURM_SUBMIT_DIR"; touch made'
        )
        out, err = await started.communicate()
        assert started.returncode == 0, err
        said = b"".join([chunk.data async for chunk in client.sessions.logs(out.decode().strip())]).decode()
        # In a directory that is there as well, output is in a file.
        before, _, file = said.strip().partition("the job's output is in the file ")
        return (shared / file).read_text() if before == "retinue: " else said

    assert await printed(shared) == f"{shared} {shared}\n"
    assert (shared / "made").exists()
    assert (await printed(Path("/"))).split()[0] == "/home/work"
    deeper = shared / "deeper"
    deeper.mkdir()
    deeper.chmod(0o777)
    assert await printed(shared, "-D", "./deeper/") == f"{deeper} {shared}\n"


async def test_agents_that_are_excluded_get_nothing(retinue: Program, client: Client) -> None:
    agents = [agent.id async for agent in client.agents.list()]
    number = await submitted(retinue, "--exclude", agents[0], "--wrap", "true")
    session = await client.sessions.get(str(number))
    await session.wait_ended(NEVER)
    assert {kernel.agent for kernel in session.kernels} == set(agents[1:])
    nothing = await retinue("sbatch", SMALL, "-x", ",".join(agents), "--wrap", "true")
    assert (nothing.code, nothing.err) == (1, "sbatch: error: --exclude: no other agent is left\n")


async def test_projects_are_accounts(retinue: Program, client: Client) -> None:
    caller = (await client.users.caller()).name
    listed = await retinue("sacctmgr", "-n", "-s", "list", "user", caller, "format=account%256")
    assert "default" in listed.out.split()
    assert "default" in (await retinue("sshare", "-U", "--format", "Account%256", "--noheader")).out.split()
    refused = await retinue("sacctmgr", "add", "user", "ada")
    assert (refused.code, "retinue users" in refused.err) == (1, True)
