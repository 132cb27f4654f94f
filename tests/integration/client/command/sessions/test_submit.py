"""`retinue submit`: scripts with options of their own and of Slurm, arrays, and what is refused whole."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.client.command.conftest import Program
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def output(client: Client, session: str) -> str:
    return b"".join([chunk.data async for chunk in client.sessions.logs(session)]).decode()


async def test_a_script_runs_with_its_options_and_arguments(retinue: Program, client: Client, tmp_path: Path) -> None:
    script = tmp_path / "Count Down.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --time=5 --mail-user=me\n#RETINUE --slots cpu=0.1,mem=64m --label a=b\n"
        'set -o pipefail; echo "$1 and $2, $JOB_SCRIPT"; printf "%s" "${FUNCNAME:-bash}" >&2; exit 3\n'
    )
    made = await retinue("submit", "--label", "c=d", str(script), "x y", "--z")
    assert made.code == 0
    assert "Count Down.sh:2: --mail-user is left out" in made.err
    session = await client.sessions.get(made.out.strip())
    assert made.err.splitlines()[-1] == f"submitted {session.name}"
    assert "'Count Down.sh' 'x y' --z\n" in (await retinue("get", session.id)).out
    assert session.name.startswith("count-down-")
    spec = session.view.spec
    assert ({**spec.labels}, spec.time_limit.seconds, spec.kernel.slots["mem"]) == (
        {"a": "b", "c": "d", "slurm.job-name": "Count Down.sh"},
        300,
        "64m",
    )
    await session.wait_ended(NEVER)
    assert (session.exit_code, session.result) == (3, "FAILED")
    assert await output(client, session.id) == "x y and --z, \nbash"
    # The same request again makes nothing twice, and others of the same script have other names.
    request_id = str(uuid.uuid4())
    once = await retinue("submit", "--request-id", request_id, str(script))
    assert (await retinue("submit", "--request-id", request_id, str(script))).out == once.out
    assert (await retinue("submit", str(script))).code == 0


async def test_a_job_as_slurms_users_submit_it(retinue: Program, client: Client, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --job-name=Train --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --mem-per-cpu=64M -t 5\n"
        'echo "$SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_NTASKS $SLURM_CPUS_PER_TASK $SLURM_JOB_NODELIST"\n'
        'echo "$SLURM_MEM_PER_CPU $SLURM_JOB_CPUS_PER_NODE $SLURM_SUBMIT_DIR $SLURM_JOB_PARTITION"\n'
        "echo $((SLURM_JOB_END_TIME - SLURM_JOB_START_TIME))\n"
        "srun -l sh -c 'echo $SLURM_JOB_NAME $SLURM_SUBMIT_DIR $(hostname); exit $((SLURM_PROCID * 3))' | sort\n"
        "srun -n 2 sh -c 'exit $((SLURM_PROCID * 3))'\n"
    )
    made = await retinue("submit", "--wait", str(script))
    assert made.code == 3
    identity = made.out.strip()
    number = (await client.sessions.get(identity)).view.number
    here = Path.cwd()
    assert [line for line in (await output(client, identity)).splitlines() if not line.startswith("srun: ")] == [
        f"{number} Train 2 1 main1,sub1",
        f"64 1(x2) {here} default",
        "300",
        f"0: Train {here} main1",
        f"1: Train {here} sub1",
    ]

    wrapped = await retinue(
        "submit", "-q", "--wait", "-c", "1", "--dependency=afterany:" + identity, "--wrap", "exit 4"
    )
    assert (wrapped.code, wrapped.err) == (4, "")
    session = await client.sessions.get(wrapped.out.strip())
    assert session.name.startswith("wrap-")
    assert session.view.spec.kernel.slots["cpu"] == "1"


async def test_output_goes_to_files_of_mounts(retinue: Program, client: Client, shared: Path) -> None:
    small = ("--slots", "cpu=0.1,mem=64m", "--wait", "--mount", f"{shared}:/data:rw", "--workdir", "/data")
    script = shared / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH -J 'A B' -D /data\nread line; pwd; echo $SLURM_JOB_ID $line; echo wrong >&2\n"
    )
    (shared / "in").write_text("given\n")
    files = ("-o", "out-%x-%j", "--error=/data/err.%5j", "--input=in")
    made = await retinue("submit", *small, *files, str(script))
    assert made.code == 0, made.err
    number = (await client.sessions.get(made.out.strip())).view.number
    out = shared / f"out-A B-{number}"
    assert out.read_text() == f"/data\n{number} given\n"
    assert (shared / f"err.{number:05}").read_text() == "wrong\n"
    said = (await output(client, made.out.strip())).splitlines()
    assert said[0] == f"retinue: the job's output is in the file /data/out-A B-{number}"
    # One file for both; what it has is cut off, unless it is to be appended to.
    for mode, times in (((), 1), (("--open-mode=append",), 2), (("--open-mode=truncate",), 1)):
        again = await retinue("submit", *small, "-o", "both", *mode, "--wrap", "cd /; echo out; echo err >&2")
        assert again.code == 0, again.err
        assert (shared / "both").read_text() == "out\nerr\n" * times if not mode else True
    array = await retinue("submit", *small, "--array=3,5", "-o", "%A-%a", "--wrap", "echo $SLURM_ARRAY_JOB_ID")
    first = (await client.sessions.get(array.out.split()[0])).view.number
    assert {(shared / f"{first}-{index}").read_text() for index in (3, 5)} == {f"{first}\n"}
    # As Slurm, sbatch begins where it was called, and has a file there.
    default = await Program(retinue.environment, shared).start("sbatch", "--mem=64M", "--wait", "--wrap", "pwd")
    said_here, wrong = await default.communicate()
    assert default.returncode == 0, wrong
    number = int(said_here.split()[-1])
    assert (shared / f"slurm-{number}.out").read_text() == f"{shared}\n"
    missing = await retinue("submit", *small, "-o", "no/such/%j", "--wrap", "echo never")
    assert missing.code == 1
    session = (await retinue("ls", "-a", "--limit", "1", "-o", "name")).out.strip()
    assert "cannot be written" in await output(client, session)
    refused = await retinue("submit", "-o", "out", "--wrap", "true")
    assert (refused.code, refused.out) == (2, "")
    assert "/home/work/out is on no writable mount of the job" in refused.err
    left = await retinue("submit", "-o", "out", "--ignore-unknown", "--dry-run", "--wrap", "true")
    assert left.code == 0
    assert "on no writable mount" in left.err


async def test_an_array_is_depended_on_as_a_whole_and_index_by_index(
    retinue: Program, client: Client, tmp_path: Path
) -> None:
    first, then = tmp_path / "first.sh", tmp_path / "then.sh"
    first.write_text("#!/bin/sh\n#SBATCH --array=1-3 --hold\n#RETINUE --slots cpu=0.1,mem=64m\ntrue\n")
    then.write_text("#!/bin/sh\n#RETINUE --slots cpu=0.1,mem=64m\ntrue\n")
    ids = (await retinue("submit", "-n", "parts", str(first))).out.split()
    whole = (await retinue("submit", "--dependency=afterok:parts", str(then))).out.strip()
    ended = (await retinue("submit", "--after", "parts", str(then))).out.strip()
    assert list((await client.sessions.get(whole)).view.spec.depends_on) == ids
    assert list((await client.sessions.get(ended)).view.spec.runs_after) == ids
    made = await retinue("submit", "-n", "more", "--array", "2-3", "--dependency=aftercorr:parts", str(then))
    each = [await client.sessions.get(identity) for identity in made.out.split()]
    number = (await client.sessions.get(ids[0])).number
    by_number = await retinue("submit", "--array", "2-3", f"--dependency=aftercorr:{number}", "--hold", str(then))
    found = [(await client.sessions.get(identity)).view.spec.depends_on for identity in by_number.out.split()]
    assert [list(of) for of in found] == [[ids[1]], [ids[2]]]
    ran = await retinue("run", "-d", "--hold", "--depends-on", f"parts,{each[0].name}", "--", "true")
    assert list((await client.sessions.get(ran.out.strip())).view.spec.depends_on) == [*ids, each[0].id]
    assert [list(session.view.spec.depends_on) for session in each] == [[ids[1]], [ids[2]]]
    refused = await retinue("submit", "--dependency=aftercorr:parts", str(then))
    assert (refused.code, refused.out) == (2, "")
    await client.sessions.update(ids[1], hold=False)
    await each[0].wait_ended(NEVER)
    assert each[0].result == "SUCCESS"
    for waiting in (whole, ended, each[1].id):
        assert (await client.sessions.get(waiting)).state == "PENDING"
    for identity in (ids[0], ids[2]):
        await client.sessions.update(identity, hold=False)
    for waiting in (whole, ended, each[1].id):
        session = await client.sessions.get(waiting)
        await session.wait_ended(NEVER)
        assert session.result == "SUCCESS"


async def test_an_array_runs_so_many_at_a_time(retinue: Program, client: Client, tmp_path: Path) -> None:
    script = tmp_path / "sweep.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --array=1-4%1\n#RETINUE --slots cpu=0.1,mem=64m\n"
        'echo "$ARRAY_INDEX $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT"; [ "$ARRAY_INDEX" != 2 ]\n'
    )
    refused = await retinue("submit", "-n", "sweep", "--priority", "100", "--depends-on", "nobody", str(script))
    assert (refused.code, refused.out) == (1, "")
    assert "is not a session of yours" in refused.err
    assert not [session async for session in client.sessions.list(filter='labels.array = "sweep"')]

    made = await retinue("submit", "-n", "sweep", str(script))
    ids = made.out.split()
    assert "retinue ls -l array=sweep" in made.err
    sessions = [await client.sessions.get(identity) for identity in ids]
    assert [session.name for session in sessions] == ["sweep-1", "sweep-2", "sweep-3", "sweep-4"]
    for session in sessions:
        await session.wait_ended(NEVER)
    assert [session.result for session in sessions] == ["SUCCESS", "FAILED", "SUCCESS", "SUCCESS"]
    assert [await output(client, identity) for identity in ids] == [f"{index} {index} of 4\n" for index in range(1, 5)]
    for before, after in itertools.pairwise(sessions):
        assert before.view.end_time.ToNanoseconds() <= after.view.schedule_time.ToNanoseconds()

    wrong = await retinue("submit", "--array", "3-1", str(script))
    assert wrong.code == 2
    script.write_text("#!/bin/sh\n#SBATCH --exclusive\n")
    wrong = await retinue("submit", str(script))
    assert wrong.code == 2
    assert "sweep.sh:2: --exclusive of sbatch has no counterpart" in wrong.err
    assert (await retinue("submit", str(tmp_path / "none.sh"))).code == 2
    assert (await retinue("submit")).code == 2
