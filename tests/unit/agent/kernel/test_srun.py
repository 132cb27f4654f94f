"""The program that starts the tasks of a job: layouts, streams, signals and ends, with a shell in place of ssh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.kernel.build import SRUN, build
from tests.support.eventually import NEVER, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[..., subprocess.CompletedProcess[str]]

# As ssh: the kernel's own variables are there, and none of the caller's.
SSH = """#!/bin/sh
while :; do case $1 in -*) shift;; *) break;; esac; done
exec env -i PATH="$PATH" HOME=/ BACKENDAI_CLUSTER_HOST="$1" BACKENDAI_CLUSTER_SIZE=3 RANK=9 {program} --retinue-step
"""


STEP = {
    "SLURM_JOB_NAME": "train",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "main1,sub1,sub2",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_GTIDS": "3",
    "SLURMD_NODENAME": "sub2",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_DISTRIBUTION": "block",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cache"), SRUN)


@pytest.fixture
def environment(program: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "ssh").write_text(SSH.format(program=program))
    (tmp_path / "ssh").chmod(0o755)
    # Steps of other tests are others' jobs.
    number = f"{os.getpid()}{abs(hash(tmp_path))}"
    yield {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "BACKENDAI_CLUSTER_HOST": "main1",
        "BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2",
        "BACKENDAI_SESSION_NUMBER": number,
        "SLURM_JOB_CPUS_PER_NODE": "2(x3)",
        "SLURM_JOB_NAME": "train",
    }
    for directory in (Path("/dev/shm"), Path(tempfile.gettempdir())):  # noqa: S108  # where the program keeps steps
        (directory / f".srun-{os.geteuid()}-{number}").unlink(missing_ok=True)


@pytest.fixture
def srun(program: Path, environment: dict[str, str], tmp_path: Path) -> Run:
    def run(*arguments: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *arguments],
            env=environment | variables,
            cwd=tmp_path,
            input=text,
            capture_output=True,
            text=True,
            timeout=NEVER,
            check=False,
        )

    return run


def _lines(ran: subprocess.CompletedProcess[str]) -> list[str]:
    assert (ran.stderr, ran.returncode) == ("", 0)
    return sorted(ran.stdout.splitlines())


# As `0 1` of a kernel's number: which tasks it has, by the number of each.
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", "0:0 1:1 2:2"),
        ("-n 4", "0:0,1 1:2 2:3"),
        ("-n 6", "0:0,1 1:2,3 2:4,5"),
        ("-n 6 -m cyclic", "0:0,3 1:1,4 2:2,5"),
        ("-n 4 -m cyclic:block", "0:0,3 1:1 2:2"),
        ("-n 6 -m plane=2", "0:0,1 1:2,3 2:4,5"),
        ("-n 3 -m block,Pack", "0:0,1 1:2"),
        ("-N 2", "0:0 1:1"),
        ("-N 2 -n 3", "0:0,1 1:2"),
        ("-N2 --ntasks-per-node=2", "0:0,1 1:2,3"),
        ("--ntasks-per-node=2", "0:0,1 1:2,3 2:4,5"),
        ("-N 1-2 -n 4", "0:0,1 1:2,3"),
        ("-c 2", "0:0 1:1 2:2"),
        ("-O -n 9", "0:0,1,2 1:3,4,5 2:6,7,8"),
        ("-n 1", "0:0"),
    ],
)
def test_tasks_are_laid_out_as_slurm_does(srun: Run, options: str, expected: str) -> None:
    lines = _lines(srun(*options.split(), "sh", "-c", "echo $SLURM_NODEID:$SLURM_GTIDS $SLURM_PROCID $SLURM_LOCALID"))
    assert sorted({line.split()[0] for line in lines}) == expected.split()
    listed = {word.split(":")[0]: word.split(":")[1].split(",") for word in expected.split()}
    assert sorted((line.split()[0][0], *line.split()[1:]) for line in lines) == sorted(
        (node, task, str(local)) for node, ids in listed.items() for local, task in enumerate(ids)
    )


def test_what_the_job_says_counts_unless_it_is_typed(srun: Run) -> None:
    job = {"SLURM_NTASKS": "6", "SLURM_NTASKS_PER_NODE": "2"}
    where = ("sh", "-c", "echo $BACKENDAI_CLUSTER_HOST $SLURM_TASKS_PER_NODE")
    assert _lines(srun(*where, **job)) == ["main1 2(x3)"] * 2 + ["sub1 2(x3)"] * 2 + ["sub2 2(x3)"] * 2
    assert _lines(srun("-N", "1", *where, **job)) == ["main1 2"] * 2
    assert _lines(srun("-n", "2", *where, **job)) == ["main1 1(x2)", "sub1 1(x2)"]
    assert _lines(srun("-w", "sub[1-2]", *where)) == ["sub1 1(x2)", "sub2 1(x2)"]
    assert _lines(srun("-n1", "-N1", "-w", "sub2", *where, **job)) == ["sub2 1"]
    assert _lines(srun("-x", "sub1", *where)) == ["main1 1(x2)", "sub2 1(x2)"]
    assert _lines(srun("-r", "1", "-N", "2", *where)) == ["sub1 1(x2)", "sub2 1(x2)"]
    warned = srun("-N", "3", "-n", "2", *where)
    assert warned.stderr == "srun: Warning: can't run 2 processes on 3 nodes, setting nnodes to 2\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-n 7", "More processors requested than permitted: 7 tasks of 1, and main1 and each other kernel has 2"),
        ("-n 4 -c 2", "More processors requested than permitted: 4 tasks of 2"),
        ("-N 4 -n 4", "More nodes requested than the 3 of this job"),
        ("-w other", "other is not a kernel of this session"),
        ("-m arbitrary", "block, cyclic and plane=SIZE can be had"),
        ("--mpi=pmix", "mpirun starts the processes of MPI in all kernels"),
        ("--het-group=0", "a session is one allocation"),
        ("--bcast", "see the same mounts"),
        ("-n x", "must be a number from 1"),
        ("--frob", "frob"),
        ("-t 1-x", "write minutes"),
        ("--jobid=9", "of its own session"),
        ("-n 1 true :", "is for jobs of several parts"),
        ("-o none/x", "Could not open output file none/x: No such file"),
        ("-i nothing", "Could not open input file nothing"),
        ("-w sub1 --pty", "--pty: it is for one task in this kernel"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(srun: Run, options: str, words: str) -> None:
    ran = srun(*options.split(), "true")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert words in ran.stderr


# As a library of MPI does that finds PMI by its descriptor: without one, it takes its process for the only one.
PMI = """
import os, socket, sys
if "PMI_FD" not in os.environ:
    sys.exit(print("alone") or 0)
with socket.socket(fileno=int(os.environ["PMI_FD"])) as pmi:
    pmi.sendall(b"cmd=init pmi_version=1 pmi_subversion=1\\n")
    sys.exit(print(pmi.recv(1024).decode(), end="") or 7)
"""


def test_tasks_that_ask_for_pmi_are_told_that_there_is_none(srun: Run, program: Path) -> None:
    ran = srun("-n4", sys.executable, "-c", PMI)
    assert (ran.stdout.splitlines(), ran.returncode) == (
        ["cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1"] * 4,
        7,
    )
    said = [line for line in ran.stderr.splitlines() if "a task asks for PMI" in line]
    assert len(said) == 3, "one for each kernel"
    assert "mpirun" in said[0]
    # One task is right to think that it is alone, also in a step; and so are those of which it is said.
    for options, tasks in (("-n1", 1), ("-n1 -w sub1", 1), ("-n2 --mpi=none", 2), ("-n2 --mpi=none --export=NONE", 2)):
        assert _lines(srun(*options.split(), sys.executable, "-c", PMI)) == ["alone"] * tasks
    assert _lines(srun("-n2", sys.executable, "-c", PMI, SLURM_MPI_TYPE="none")) == ["alone"] * 2
    assert _lines(srun("-n2", "sh", "-c", '"$0" -n1 "$1" -c "$2"', program, sys.executable, PMI)) == ["alone"] * 2


def test_a_step_has_the_variables_that_slurm_sets(srun: Run) -> None:
    ran = srun("-n4", "-l", "--input=none", "sh", "-c", "env", CUDA_VISIBLE_DEVICES="7", MINE="a\nb", RANK="0")
    assert (ran.stderr, ran.returncode) == ("", 0)
    last = dict(line[3:].split("=", 1) for line in ran.stdout.splitlines() if line.startswith("3: ") and "=" in line)
    assert last["MINE"] == "a"
    assert "CUDA_VISIBLE_DEVICES" not in last
    assert (last["RANK"], last["WORLD_SIZE"]) == ("3", "4")
    assert {name: value for name, value in last.items() if name in STEP} == STEP
    assert (last["SLURM_JOB_ID"], last["BACKENDAI_CLUSTER_HOST"]) == (last["SLURM_JOBID"], "sub2")
    assert srun("-n1", "sh", "-c", "echo $SLURM_STEP_ID").stdout == "1\n"


@pytest.mark.parametrize(
    ("exported", "expected"),
    [("ALL", "1 2 "), ("NONE", "  "), ("A", "1  "), ("A,C=3", "1  3"), ("ALL,B=5", "1 5 "), ("NIL", "  ")],
)
def test_variables_go_along_as_export_says(srun: Run, exported: str, expected: str) -> None:
    for host in ("main1", "sub1"):
        ran = srun("-N1", f"-w{host}", f"--export={exported}", "sh", "-c", 'echo "$A $B $C"', A="1", B="2")
        assert _lines(ran) == [expected]


def test_input_goes_to_all_tasks_or_to_one(srun: Run, tmp_path: Path) -> None:
    text = "".join(f"{number}\n" for number in range(60_000))
    count = ("sh", "-c", "echo $SLURM_PROCID $(cksum)")
    (tmp_path / "given").write_text(text)
    summed = subprocess.run(["/usr/bin/cksum"], input=text, capture_output=True, text=True, check=True).stdout.strip()
    empty = "4294967295 0"
    assert _lines(srun(*count, text=text)) == [f"{task} {summed}" for task in range(3)]
    assert _lines(srun("-i", "given", *count)) == [f"{task} {summed}" for task in range(3)]
    assert _lines(srun("-i", "1", *count, text=text)) == [f"0 {empty}", f"1 {summed}", f"2 {empty}"]
    assert _lines(srun("-i", "none", *count, text=text)) == [f"{task} {empty}" for task in range(3)]
    # One that does not read holds none of the others up.
    ran = srun("sh", "-c", "[ $SLURM_PROCID != 1 ] || exit 0; wc -l", text=text)
    assert _lines(ran) == ["60000"] * 2


def test_output_is_shown_by_lines_with_labels_and_streams(srun: Run) -> None:
    task = 'i=0; while [ $i -lt 2000 ]; do echo "$SLURM_PROCID $i abcdefghijklmnopqrstuvwxyz"; i=$((i+1)); done'
    ran = srun("sh", "-c", f"{task}; printf end >&2")
    assert (ran.stderr, ran.returncode) == ("end" * 3, 0)
    for number in range(3):
        own = [line for line in ran.stdout.splitlines() if line.startswith(f"{number} ")]
        assert own == [f"{number} {i} abcdefghijklmnopqrstuvwxyz" for i in range(2000)]
    labelled = srun("-l", "sh", "-c", "printf 'a\\nb'; echo c >&2", SLURM_NTASKS="3")
    assert sorted(labelled.stdout.splitlines()) == ["0: a", "0: b", "1: a", "1: b", "2: a", "2: b"]
    assert sorted(labelled.stderr.splitlines()) == ["0: c", "1: c", "2: c"]
    binary = srun("-n1", "-w", "sub1", "sh", "-c", "head -c 3000000 /dev/zero | cksum; [ -t 1 ] || echo no")
    assert binary.stdout.endswith(" 3000000\nno\n")
    assert srun("-u", "-N2", "sh", "-c", "[ ! -t 1 ] || echo terminal").stdout == "terminal\nterminal\n"


def test_files_have_the_names_of_patterns(srun: Run, tmp_path: Path) -> None:
    greet = ("sh", "-c", "echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2")
    assert _lines(srun("-o", "%x-%t-%N-%n-%2s.txt", "-N2", *greet)) == []
    assert (tmp_path / "train-1-sub1-1-00.txt").read_text() == "out 1\nerr 1\n"
    assert _lines(srun("-o", "all.txt", "-e", "err.%3t", *greet)) == []
    assert sorted((tmp_path / "all.txt").read_text().splitlines()) == ["out 0", "out 1", "out 2"]
    assert (tmp_path / "err.002").read_text() == "err 2\n"
    assert _lines(srun("-o", "all.txt", "-e", "none", "--open-mode=append", "-n1", *greet)) == []
    assert (tmp_path / "all.txt").read_text().splitlines()[3:] == ["out 0"]
    one = srun("-o", "1", *greet)
    assert (one.stdout, len(one.stderr.splitlines())) == ("out 1\n", 3)
    assert _lines(srun("-o", "a%%\\%t", "-n1", *greet)) == []
    assert (tmp_path / "a%%%t").read_text()


@pytest.mark.parametrize("where", [(), ("-w", "sub1", "-N1"), ("-n3",)])
def test_the_highest_exit_code_counts(srun: Run, where: tuple[str, ...]) -> None:
    assert srun("-n1", *where, "sh", "-c", "exit 3").returncode == 3
    assert srun(*where, "sh", "-c", "exit $SLURM_NODEID").returncode == (0 if "-w" in where else 2)
    killed = srun("-o", "/dev/stdout", *where, "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137
    assert ": task 0: Killed\n" in killed.stderr
    missing = srun("-l", *where, "no-such-program")
    assert missing.returncode == 2
    assert "execve(): no-such-program: No such file or directory" in missing.stderr


def test_one_that_fails_ends_the_others_if_that_is_asked_for(srun: Run) -> None:
    # It fails once the others have said what they do when they are asked to end.
    fail = "until [ -e 0.$SLURM_STEP_ID ] && [ -e 1.$SLURM_STEP_ID ]; do sleep 0.01; done; exit 5"
    live = "trap 'exit 9' TERM; touch $SLURM_PROCID.$SLURM_STEP_ID; sleep 1000 & wait"
    command = ("sh", "-c", f"if [ $SLURM_PROCID = 2 ]; then {fail}; else {live}; fi")
    ran = srun("-K", *command)
    assert ran.returncode == 9
    assert "sub2: task 2: Exited with exit code 5\n" in ran.stderr
    assert "CANCELLED DUE TO TASK FAILURE" in ran.stderr
    assert srun("-K0", "-W1", *command).returncode == 9
    assert srun("sh", "-c", "exit $SLURM_PROCID").returncode == 2
    limited = srun("-t", "0:01", "sleep", "1000")
    assert (limited.returncode, "DUE TO TIME LIMIT" in limited.stderr) == (143, True)


def test_signals_are_passed_on_and_nothing_is_left_behind(
    program: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    task = "trap 'touch got-$SLURM_PROCID' USR1; trap 'exit 4' INT; sleep 1000 & touch on-$SLURM_PROCID; while :; do wait; done"

    def there(*names: str) -> Callable[[], bool]:
        return lambda: all((tmp_path / name).exists() for name in names)

    running = subprocess.Popen([program, "sh", "-c", task], env=environment, cwd=tmp_path, stderr=subprocess.PIPE)
    eventually_blocking(there("on-0", "on-1", "on-2"))
    running.send_signal(signal.SIGUSR1)
    eventually_blocking(there("got-0", "got-1", "got-2"))
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=NEVER)[1].count(b"Exited with exit code 4") == 3
    assert running.returncode == 4
    # Of srun that is killed, the tasks end by themselves; each holds a descriptor of the pipe.
    read, write = os.pipe()
    os.set_inheritable(write, True)
    killed = subprocess.Popen([program, "sh", "-c", "trap '' TERM; touch up-$SLURM_PROCID; sleep 1000"],
                              env=environment, cwd=tmp_path, pass_fds=(write,))  # fmt: skip
    os.close(write)
    eventually_blocking(there("up-0", "up-1", "up-2"))
    killed.kill()
    killed.wait(NEVER)
    assert os.read(read, 1) == b""
    os.close(read)


def test_steps_wait_for_processors_that_others_use(program: Path, environment: dict[str, str], tmp_path: Path) -> None:
    first = subprocess.Popen(
        [program, "-n6", "sh", "-c", "touch on-$SLURM_PROCID; until [ -e go ]; do sleep 0.01; done"],
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    eventually_blocking(lambda: all((tmp_path / f"on-{task}").exists() for task in range(6)))
    # What overlaps does not wait; neither does what a step starts.
    for options, step in (("--overlap", {}), ("-n1", {"SLURM_STEP_ID": "0"})):
        assert (
            subprocess.run([program, options, "true"], env=environment | step, timeout=NEVER, check=False).returncode
            == 0
        )
    second = subprocess.Popen(
        [program, "-n1", "--exact", "sh", "-c", "echo $SLURM_STEP_ID"],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert second.stderr is not None
    assert "step creation temporarily disabled, retrying" in second.stderr.readline()
    (tmp_path / "go").touch()
    assert first.wait(NEVER) == 0
    assert second.communicate(timeout=NEVER)[0] == "3\n"


def test_a_file_says_which_task_runs_what(srun: Run, tmp_path: Path) -> None:
    (tmp_path / "programs").write_text("# Tasks\n0 echo 'the first' %t\n1-2 sh -c \"echo task %t, %o\"\n")
    assert _lines(srun("--multi-prog", "programs")) == ["task 1, 0", "task 2, 1", "the first 0"]
    (tmp_path / "programs").write_text("0,1 true\n")
    assert "task 2 has no program" in srun("--multi-prog", "programs").stderr


def test_a_missing_directory_is_said(srun: Run, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert _lines(srun("-D", str(tmp_path / "there"), "-N2", "pwd")) == [str(tmp_path / "there")] * 2
    for options in ((), ("-N2",)):
        ran = srun("-D", "/no/such", "-n1", *options, "pwd")
        assert ran.stdout == "/tmp\n"  # noqa: S108
        assert "couldn't chdir to `/no/such': No such file or directory: going to /tmp instead" in ran.stderr


def test_lists_of_hosts_and_the_job_are_shown(program: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "scontrol").symlink_to(program)

    def scontrol(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "scontrol", *arguments], env=environment, capture_output=True, text=True, check=False
        )

    assert scontrol("show", "hostnames").stdout.split() == ["main1", "sub1", "sub2"]
    assert scontrol("show", "hostnames", "a[08-10,3]x,b").stdout.split() == ["a08x", "a09x", "a10x", "a3x", "b"]
    assert scontrol("show", "hostlist", "a1,a2,a4,b,c09,c10").stdout == "a[1-2,4],b,c[09-10]\n"
    for wrong in ("a[1", "a[x]", "a]", "a[1-2]b[3]"):
        assert "Invalid hostlist" in scontrol("show", "hostnames", wrong).stderr
    job = scontrol("show", "job", "-d").stdout
    assert job.startswith(f"JobId={environment['BACKENDAI_SESSION_NUMBER']} JobName=train\n")
    assert "NodeList=main1,sub[1-2]\n" in job
    assert scontrol("show", "job", "1").stderr == "slurm_load_jobs error: Invalid job id specified\n"
    assert "call `retinue scontrol`" in scontrol("update", "job", "1").stderr
