"""The variables of Slurm that are known when a job is submitted. Pure; the others are set as it begins."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from retinue.client.command.slurm_scripts import job_start
from retinue.rpc.core.amounts import AmountError, parse_amount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.client.command.slurm_scripts.sbatch_meaning import Tasks
    from retinue.client.command.slurm_scripts.submitting_machine import Submission
    from retinue.manager.v1 import session_pb2

_THOUSANDTHS, _MEGABYTE = 1000, 1 << 20
# Of options that say how large a job is: they are set when their option is.
_OF_SHAPE = {
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU",
    "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "gpus-per-task": "SLURM_GPUS_PER_TASK",
}

# What srun in the job reads.
_OF_STEPS = {"distribution": "SLURM_DISTRIBUTION", "overcommit": "SLURM_OVERCOMMIT"}


def job_variables(
    spec: session_pb2.SessionSpec,
    main: session_pb2.KernelSpec,
    *,
    job_name: str,
    submission: Submission,
    tasks: Tasks | None,
    shape: Mapping[str, str],
    given: Mapping[str, str],
) -> dict[str, str]:
    """Returns the variables of a job in `main`, its first kernel; `shape` are options that say how large it is,
    `given` others.
    """
    slots = {**spec.kernel.slots, **main.slots}
    variables = {
        "SLURM_JOB_NAME": job_name,
        "SLURM_JOB_PARTITION": spec.resource_group or "default",
        "SLURM_JOB_ACCOUNT": spec.project or "default",
        "SLURM_SUBMIT_DIR": submission.directory,
        "SLURM_SUBMIT_HOST": submission.host,
        "SLURM_JOB_USER": submission.user,
    }
    per_kernel = 1
    if tasks is not None and tasks.number != spec.cluster_size:
        per_kernel, last = tasks.per_kernel, tasks.number - tasks.per_kernel * (spec.cluster_size - 1)
        variables["SLURM_NTASKS"] = str(tasks.number)
        variables["SLURM_TASKS_PER_NODE"] = _tasks_per_node(spec.cluster_size, per_kernel, last)
    if cpus := _amount("cpu", slots) // _THOUSANDTHS:
        variables["SLURM_CPUS_ON_NODE"] = str(cpus)
        variables["SLURM_CPUS_PER_TASK"] = str(max(1, cpus // per_kernel))
    if memory := _amount("mem", slots) // _MEGABYTE:
        if "mem-per-cpu" in shape:
            variables["SLURM_MEM_PER_CPU"] = str(memory // max(1, cpus))
        else:
            variables["SLURM_MEM_PER_NODE"] = str(memory)
    if gpus := _amount("cuda.device", slots) // _THOUSANDTHS:
        variables["SLURM_GPUS_ON_NODE"] = str(gpus)
    variables |= {name: shape[option] for option, name in _OF_SHAPE.items() if option in shape}
    variables |= {name: given[option] or "1" for option, name in _OF_STEPS.items() if option in given}
    if spec.time_limit.seconds:
        variables[job_start.TIME_LIMIT] = str(spec.time_limit.seconds)
    return variables


def _amount(name: str, slots: Mapping[str, str]) -> int:
    try:
        return parse_amount(name, slots.get(name) or "0")
    except AmountError:
        # The manager says what is wrong with it.
        return 0


def _tasks_per_node(kernels: int, per_kernel: int, last: int) -> str:
    """Returns the tasks of each kernel as Slurm writes them: `4(x2),3`."""
    counts = [per_kernel] * (kernels - 1) + [last]
    runs = [(count, len(list(run))) for count, run in itertools.groupby(counts)]
    return ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in runs)
