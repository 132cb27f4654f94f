"""The variables of a job that are known when it is submitted."""

from __future__ import annotations

from retinue.client.command.slurm_scripts.job_variables import job_variables
from retinue.client.command.slurm_scripts.sbatch_meaning import Tasks
from retinue.client.command.slurm_scripts.submitting_machine import Submission
from retinue.manager.v1 import session_pb2

HERE = Submission("/home/ada/p", "login1", "ada")


def _variables(slots: dict[str, str], shape: dict[str, str], tasks: Tasks | None, size: int = 1) -> dict[str, str]:
    spec = session_pb2.SessionSpec(resource_group="gpu", cluster_size=size)
    spec.time_limit.seconds = 90
    spec.kernel.slots.update(slots)
    main = session_pb2.KernelSpec()
    return job_variables(
        spec,
        main,
        job_name="Train",
        submission=HERE,
        tasks=tasks,
        shape=shape,
        given={"overcommit": "", "distribution": "cyclic"},
    )


def test_variables_of_a_job() -> None:
    found = _variables(
        {"cpu": "4", "mem": "8g", "cuda.device": "2"},
        {"gpus-per-node": "2", "ntasks-per-node": "2"},
        Tasks(5, 2, 2),
        size=3,
    )
    assert found == {
        "SLURM_JOB_NAME": "Train",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_ACCOUNT": "default",
        "SLURM_SUBMIT_DIR": "/home/ada/p",
        "SLURM_SUBMIT_HOST": "login1",
        "SLURM_JOB_USER": "ada",
        "SLURM_NTASKS": "5",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
        "SLURM_CPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_MEM_PER_NODE": "8192",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_GPUS_PER_NODE": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_DISTRIBUTION": "cyclic",
        "SLURM_OVERCOMMIT": "1",
        "JOB_TIME_LIMIT": "90",
    }


def test_memory_of_a_processor_and_amounts_that_are_none() -> None:
    found = _variables({"cpu": "4", "mem": "8g"}, {"mem-per-cpu": "2G"}, None)
    assert found["SLURM_MEM_PER_CPU"] == "2048"
    assert "SLURM_MEM_PER_NODE" not in found
    assert not {"SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE"} & _variables({"cpu": "many", "mem": "x"}, {}, None).keys()
