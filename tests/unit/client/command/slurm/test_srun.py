"""Words of srun outside of a job, as words of `retinue run`."""

from __future__ import annotations

import pytest

from retinue.client.command.slurm.srun import arguments, parse
from retinue.client.errors import UsageError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("hostname -f", "--quiet -- hostname -f"),
        ("-c 2 --mem=1G -t 5 -p day a -n 9", "--quiet --slots cpu=2,mem=1g --time-limit 300s --group day -- a -n 9"),
        ("--pty -u bash", "-it --quiet -- bash"),
        ("-J one a", "--quiet --label slurm.job-name=one -- a"),
        ("-Q --image=x a", "--quiet --image x -- a"),
        (
            "-lK -n 2 a",
            "--quiet --size 2 --mode multi-node -e SLURM_NTASKS=2 -- srun --label --kill-on-bad-exit -n 2 a",
        ),
        ("-W30 --mpi=none -N1 -n 2 a", "--quiet --slots cpu=2 -e SLURM_NTASKS=2 -- srun --wait=30 --mpi=none -n 2 a"),
        ("--time 1 -- -x", "--quiet --time-limit 60s -- -x"),
    ],
)
def test_words(words: str, expected: str) -> None:
    assert arguments(parse(words.split()), {}, piped=False) == expected.split()


def test_variables_and_input_go_along() -> None:
    environment = {"A": "1", "HOME": "/root", "SLURM_PARTITION": "day"}
    assert arguments(parse(["a"]), environment, piped=True) == [
        "-i",
        "--quiet",
        "-e",
        "A=1",
        "--group",
        "day",
        "--",
        "a",
    ]
    assert arguments(parse(["--export=NONE", "a"]), environment, piped=False) == [
        "--quiet",
        "--group",
        "day",
        "--",
        "a",
    ]


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        arguments(parse(["--frob=1", "--exclusive", "--array=1", "--time=soon"]), {}, piped=False)
    assert [line.split()[0] for line in str(refused.value).splitlines()] == [
        "--frob",
        "--array",
        "No",
        "--exclusive",
        "--time=soon:",
    ]
    with pytest.raises(UsageError, match="one task"):
        arguments(parse(["--pty", "-n", "2", "a"]), {}, piped=False)


def test_a_job_that_runs_is_named() -> None:
    step = parse(["--jobid=12", "--pty", "bash", "-l"])
    assert (step.job, step.pty, step.command) == ("12", True, ["bash", "-l"])
