"""Where a job's files are, and which may be asked for."""

from __future__ import annotations

import pytest

from retinue.client.command.slurm_scripts.job_files import is_shown, job_files
from retinue.client.command.slurm_scripts.sbatch_meaning import UnsupportedError
from retinue.client.errors import UsageError

MOUNTS = [("/srv/data", "/data", True), ("/srv/models", "/data/models", False), ("/home/ada", "/home/ada", True)]


@pytest.mark.parametrize(
    ("path", "shown", "writable"),
    [
        ("/data", True, True),
        ("/data/a/b", True, True),
        ("/data/models/x", True, False),
        ("/database", False, False),
        ("/", False, False),
        ("", False, False),
    ],
)
def test_what_mounts_show(path: str, shown: bool, writable: bool) -> None:
    assert is_shown(path, MOUNTS, writable=False) is shown
    assert is_shown(path, MOUNTS, writable=True) is writable


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"output": "/data/%x-%j.out"}, {"JOB_OUTPUT": "/data/%x-%j.out"}),
        ({"output": "logs/%j/out", "error": "../err"}, {"JOB_OUTPUT": "/home/ada/p/logs/%j/out", "JOB_ERROR": "/home/ada/err"}),
        ({"output": "/dev/null", "open-mode": "a"}, {"JOB_OUTPUT": "/dev/null", "JOB_OPEN_MODE": "append"}),
        ({"input": "in.txt", "open-mode": "truncate"}, {"JOB_INPUT": "/home/ada/p/in.txt", "JOB_OPEN_MODE": "truncate"}),
        ({"output": ""}, {}),
    ],
)  # fmt: skip
def test_files_on_mounts(given: dict[str, str], expected: dict[str, str]) -> None:
    assert job_files(given, "/home/ada/p", MOUNTS) == expected


@pytest.mark.parametrize("path", ["/data/models/out", "/tmp/out", "%x/out", "../../../x", "out"])  # noqa: S108
def test_what_would_be_gone_with_its_kernel_is_refused(path: str) -> None:
    with pytest.raises(UnsupportedError, match=r"writable mounts: /data, /home/ada\)"):
        job_files({"output": path}, "", MOUNTS)
    left_out: list[str] = []
    assert job_files({"error": path, "output": "/data/x"}, "", MOUNTS, left_out=left_out) == {"JOB_OUTPUT": "/data/x"}
    assert left_out[0].startswith(f"--error={path}: /")


def test_a_mode_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="append or truncate"):
        job_files({"open-mode": "both"}, "", MOUNTS)
