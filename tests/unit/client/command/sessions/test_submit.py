"""Scripts as Slurm's users write and submit them: options of sbatch on the command line, variables, srun."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import click
import pytest

from retinue.client.command.application import run
from retinue.client.command.sessions.script_options import read_script
from retinue.client.command.sessions.session_views import session_facts
from retinue.client.command.sessions.submit import submit_command
from retinue.client.command.shell.text_files import read_file
from retinue.client.command.slurm_scripts.job_start import START
from retinue.client.spec import session_spec
from retinue.manager.v1 import session_pb2
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = "#!/bin/sh\n#SBATCH --ntasks=2 --time=5\n#RETINUE --group night\ntrue\n"


def _parsed(*arguments: str) -> dict[str, object]:
    return submit_command.make_context("submit", list(arguments)).params


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "job.sh"
    path.write_text(SCRIPT)
    return str(path)


def test_options_of_sbatch_on_the_command_line_go_before_those_of_the_script(script: str) -> None:
    found = _parsed(
        "--time=10", "-c", "4", "-d", "afterok:a", "--mem-per-cpu", "1G", "-p", "web:80", script, "--time=3"
    )
    assert found["time_limit"] == 600
    assert found["slots"] == {"cpu": "4", "mem": "4g"}
    assert (found["size"], found["depends_on"], found["group"]) == (2, ("a",), "night")
    assert found["arguments"] == ("--time=3",)
    assert _parsed("--partition", "day", script)["group"] == "day"
    assert _parsed("--ntasks=4", script)["size"] == 4
    # One node is one kernel, whatever the script says of tasks.
    assert _parsed("--ntasks=4", "-N", "1", script)["size"] == 1


def test_a_directory_of_sbatch_is_from_here(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _parsed("-D", "a/b", script)["workdir"] == f"{tmp_path}/a/b"
    assert _parsed("--chdir=/data", script)["workdir"] == "/data"


def test_a_script_with_dos_line_ends_runs(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(b'\xef\xbb\xbf#!/bin/sh\r\n#RETINUE --size 2\r\necho "$1"\r\n')
    assert _parsed(str(path))["size"] == 2
    _, text = read_file(str(path))
    ran = _start(text, tmp_path)
    assert (ran.stdout, ran.returncode) == ("x y\n", 0), ran.stderr


def test_wait_quiet_and_wrap_are_as_those_of_sbatch(script: str) -> None:
    found = _parsed("-W", "-Q", script)
    assert (found["wait"], found["quiet"]) == (True, True)
    assert _parsed("--wrap", "hostname; date")["wrap"] == "hostname; date"
    with pytest.raises(click.UsageError, match="takes the place of SCRIPT"):
        _parsed("--wrap", "hostname", script)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n", "2", "{}"], "for 2 tasks: --ntasks=2"),
        (["-p", "day", "{}"], "-p is a port here; for partition 'day': --partition=day"),
        (["-pday", "{}"], "--partition=day"),
        (
            ["-o", "out.txt", "{}"],
            "/home/work/out.txt is on no writable mount of the job, and would be gone with its kernel (writable mounts: none)",
        ),
        (["--exclusive", "{}"], "--exclusive of sbatch has no counterpart"),
        (["--exclusive", "--uid", "1", "{}"], "--uid of sbatch has no counterpart"),
        (["--dependency=after:12", "{}"], "afterok:SESSION"),
        ([], "name a SCRIPT, or give --wrap COMMAND"),
    ],
)
def test_what_means_something_else_is_refused(
    arguments: list[str], expected: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["submit", *(word.format(script) for word in arguments)]) == 2
    assert expected in capsys.readouterr().err


def _start(script: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", START, "job.sh", "x y"],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "JOB_SCRIPT": script, **environment},
        capture_output=True,
        text=True,
        timeout=NEVER,
        check=False,
    )


_OF_TWO = {
    "BACKENDAI_SESSION_ID": "1234",
    "BACKENDAI_SESSION_NUMBER": "12",
    "BACKENDAI_CLUSTER_SIZE": "2",
    "BACKENDAI_CLUSTER_HOSTS": "main1,sub1",
    "BACKENDAI_CLUSTER_HOST": "main1",
    "RETINUE_ATTEMPT": "3",
    "SLURM_CPUS_ON_NODE": "4",
    "JOB_ARRAY_OFFSET": "2",
    "JOB_TIME_LIMIT": "60",
}
_FOUND = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOBID": "12",
    "SLURM_ARRAY_JOB_ID": "10",
    "SLURM_NTASKS": "2",
    "SLURM_NPROCS": "2",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NODELIST": "main1,sub1",
    "SLURM_JOB_NODELIST": "main1,sub1",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_CPUS_ON_NODE": "4",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
    "SLURM_RESTART_COUNT": "2",
    "SLURMD_NODENAME": "main1",
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_CLUSTER_NAME": "retinue",
    "SLURM_JOB_UID": str(os.getuid()),
    "SLURM_JOB_GID": str(os.getgid()),
    "ENVIRONMENT": "BATCH",
    "OMPI_MCA_plm": "rsh",
}


def test_a_script_finds_the_variables_of_slurm(tmp_path: Path) -> None:
    ended = _start('#!/bin/sh\nenv; echo "$1 ${0##*/} $JOB_SCRIPT"\n', tmp_path, **_OF_TWO)
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert ended.stdout.splitlines()[-1] == "x y job.sh "
    found = dict(line.split("=", 1) for line in ended.stdout.splitlines() if "=" in line)
    assert {name: found.get(name) for name in _FOUND} == _FOUND
    assert int(found["SLURM_JOB_END_TIME"]) - int(found["SLURM_JOB_START_TIME"]) == 60
    assert not [name for name in found if name.startswith("JOB_")]
    alone = _start(
        "#!/bin/sh\necho $SLURM_NTASKS $SLURM_TASKS_PER_NODE $SLURM_JOB_ID $TMPDIR ${SLURM_RESTART_COUNT-none}\n",
        tmp_path,
        SLURM_JOB_ID="mine",
    )
    assert alone.stdout == f"1 1 mine {tmp_path} none\n"


def test_a_submitted_script_is_shown_by_its_name() -> None:
    spec = session_spec(type="batch", command=["/bin/sh", "-c", START, "job.sh", "x y"])
    facts = dict(session_facts(session_pb2.Session(spec=spec)))
    assert facts["command"] == "job.sh 'x y'"
    other = session_spec(type="batch", command=["/bin/sh", "-c", "make data"])
    assert dict(session_facts(session_pb2.Session(spec=other)))["command"] == "/bin/sh -c 'make data'"


def test_wait_of_a_script_is_taken() -> None:
    assert read_script("#!/bin/sh\n#SBATCH -W -Q\ntrue", "job.sh").arguments == ["--wait", "--quiet"]


@pytest.mark.parametrize(("flags", "told"), [([], 1), (["-q"], 0), (["-o", "name"], 0)])
def test_what_is_left_out_is_told_unless_only_the_id_is_asked_for(
    flags: list[str], told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RETINUE_ENDPOINT", "RETINUE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETINUE_CONTEXTS", str(tmp_path / "contexts.yaml"))
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --mail-type=END\ntrue\n")
    assert run(["submit", *flags, str(script)]) == 2
    said = capsys.readouterr().err
    assert (said.count("is left out"), said.count("no manager is known")) == (told, 1)
