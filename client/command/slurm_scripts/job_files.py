"""Where a job's output, errors and input are: files on its mounts, as `--output` and others say. Pure."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from retinue.client.command.slurm_scripts import job_start
from retinue.client.command.slurm_scripts.sbatch_meaning import UnsupportedError
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retinue.client.command.shell.docker_syntax import Mount

HOME = "/home/work"
"""Where a job begins when nothing says where."""
_OF_OPTION = {"output": job_start.OUTPUT, "error": job_start.ERROR, "input": job_start.INPUT}
_NOT_KEPT = "/dev/null"


def is_shown(path: str, mounts: Sequence[Mount], *, writable: bool) -> bool:
    """Returns whether a path of a kernel is on one of its mounts, and can be written if that is asked for."""
    holding = [mount for mount in mounts if path == mount[1] or path.startswith(f"{mount[1].rstrip('/')}/")]
    # The mount that is deepest in the tree is what a kernel sees.
    return bool(holding) and (max(holding, key=lambda mount: len(mount[1]))[2] or not writable)


def job_files(
    given: Mapping[str, str], directory: str, mounts: Sequence[Mount], *, left_out: list[str] | None = None
) -> dict[str, str]:
    """Returns the variables by which a job finds its files. Paths of `given` options may begin in the `directory` in
    which the job begins.

    Output that would be gone with its kernel is refused; with `left_out` the options are put there. Raises UsageError.
    """
    variables: dict[str, str] = {}
    for option, variable in _OF_OPTION.items():
        pattern = given.get(option)
        if not pattern:
            continue
        path = posixpath.normpath(posixpath.join(directory or HOME, pattern))
        # What stands for something else may be in a name, and in a directory's.
        fixed = path.partition("%")[0].rpartition("/")[0] if "%" in path else posixpath.dirname(path)
        if option != "input" and path != _NOT_KEPT and not is_shown(fixed or "/", mounts, writable=True):
            targets = ", ".join(target for _, target, writable in mounts if writable) or "none"
            error = UnsupportedError(
                f"--{option}={pattern}: {path} is on no writable mount of the job, and would be gone with its kernel "
                f"(writable mounts: {targets}): name a file on one, or leave it out, as retinue logs has the output"
            )
            if left_out is None:
                raise error
            left_out.append(str(error))
            continue
        variables[variable] = path
    if mode := given.get("open-mode"):
        if mode[0] not in "at" or not ("append".startswith(mode) or "truncate".startswith(mode)):
            raise UsageError(f"--open-mode={mode}: append or truncate")
        variables[job_start.OPEN_MODE] = "append" if mode[0] == "a" else "truncate"
    return variables
