"""Jobs, nodes and partitions as `scontrol show` prints them: words KEY=VALUE, in lines of their own or in one. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from retinue.client.command.slurm.job import NULL, Job, JobState, megabytes
from retinue.client.command.slurm.node import DEFAULT_GROUP, Node, Partition
from retinue.client.command.slurm.squeue import MIN_JOB_AGE
from retinue.client.command.slurm_scripts import job_start
from retinue.client.command.slurm_scripts.hostlist import compress
from retinue.client.command.slurm_scripts.times import long_span, moment_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_ARRAY_SIZE = 10_001
"""One more than the largest number of sessions in an array."""

_MEBIBYTE = 2**20


def job_text(job: Job, variables: Mapping[str, str], *, one_line: bool) -> str:
    """Returns a job; `variables` are those of its script, where the caller may see them."""
    spec = job.session.spec
    limit = long_span(job.time_limit) if job.time_limit else "UNLIMITED"
    nodes = job.node_list or NULL
    array = f"ArrayJobId={job.array} ArrayTaskId={job.index} " if job.array is not None else ""
    output, errors = (_file(job, variables.get(name, "")) for name in (job_start.OUTPUT, job_start.ERROR))
    return _joined(
        [
            f"JobId={job.number} {array}JobName={job.name}",
            f"UserId={job.session.owner}(0) GroupId={spec.project}(0) MCS_label=N/A",
            f"Priority={spec.priority} Nice=0 Account={spec.project or NULL} QOS=normal",
            f"JobState={job.state.name} Reason={job.reason} Dependency={job.dependency or NULL}",
            f"Requeue={int(spec.retry.max_attempts > 1)} Restarts={job.session.retries} BatchFlag=1 Reboot=0 "
            f"ExitCode={job.exit_code}",
            f"RunTime={long_span(job.elapsed)} TimeLimit={limit} TimeMin=N/A",
            f"SubmitTime={moment_text(job.submit_time, 'Unknown')} EligibleTime={moment_text(job.eligible_time, 'Unknown')}",
            f"StartTime={moment_text(job.start_time, 'Unknown')} EndTime={moment_text(job.expected_end, 'Unknown')} "
            "Deadline=N/A",
            "SuspendTime=None SecsPreSuspend=0",
            f"Partition={spec.resource_group} AllocNode:Sid=N/A",
            f"ReqNodeList={compress(spec.agents) or NULL} ExcNodeList={NULL}",
            f"NodeList={nodes}",
            *([f"BatchHost={job.nodes[0]}"] if job.nodes else []),
            f"NumNodes={job.node_count} NumCPUs={job.cpus} NumTasks={variables.get('SLURM_NTASKS', job.node_count)} "
            f"CPUs/Task={variables.get('SLURM_CPUS_PER_TASK', '1')} ReqB:S:C:T=0:0:*:*",
            f"TRES={job.tres}",
            f"MinCPUsNode={job.cpus // job.node_count} MinMemoryNode={megabytes(job.memory_of_node)} MinTmpDiskNode={megabytes(job.disk_of_node)}",
            f"Features={spec.architecture or NULL} DelayBoot=00:00:00",
            f"OverSubscribe=OK Contiguous=0 Licenses={NULL} Network={NULL}",
            f"Command={' '.join(spec.kernel.command[3:]) or NULL}",
            f"WorkDir={job.directory}",
            *([f"Comment={spec.labels['comment']}"] if "comment" in spec.labels else []),
            f"StdErr={errors or output or NULL}",
            f"StdIn={variables.get(job_start.INPUT) or '/dev/null'}",
            f"StdOut={output or NULL}",
        ],
        one_line=one_line,
    )


def _file(job: Job, pattern: str) -> str:
    """Returns a file of a job from its pattern, as far as it is known from outside."""
    known = {"%j": str(job.number), "%A": str(job.array or job.number), "%a": job.index or "4294967294", "%x": job.name}
    return re.sub(r"%[jAax]", lambda found: known[found[0]], pattern)


def node_text(node: Node, *, one_line: bool) -> str:
    """Returns a node."""
    agent = node.agent
    state = node.state.upper().replace("DRAINING", "MIXED+DRAIN").replace("DRAINED", "IDLE+DRAIN")
    features = agent.architecture or NULL
    allocated = f"cpu={node.cpus_allocated},mem={node.memory_allocated}M" if node.is_used else ""
    return _joined(
        [
            f"NodeName={node.name} Arch={agent.architecture} CoresPerSocket=1",
            f"CPUAlloc={node.cpus_allocated} CPUTot={node.cpus} CPULoad=N/A",
            f"AvailableFeatures={features}",
            f"ActiveFeatures={features}",
            f"Gres={node.gres}",
            f"NodeAddr={agent.address.rpartition(':')[0] or NULL} NodeHostName={node.name} Version={agent.version or 'N/A'}",
            "OS=Linux",
            f"RealMemory={node.memory} AllocMem={node.memory_allocated} FreeMem={node.memory - node.memory_allocated} "
            f"Sockets={node.cpus} Boards=1",
            f"State={state} ThreadsPerCore=1 TmpDisk={node.disk} Weight=1 Owner=N/A MCS_label=N/A",
            f"Partitions={agent.resource_group}",
            f"CfgTRES=cpu={node.cpus},mem={megabytes(node.memory * _MEBIBYTE)},billing={node.cpus}"
            + (f",gres/gpu={node.gpus}" if node.gpus else ""),
            f"AllocTRES={allocated}",
            *([f"Reason={node.reason}"] if node.reason != "none" else []),
        ],
        one_line=one_line,
    )


def partition_text(partition: Partition, *, one_line: bool) -> str:
    """Returns a partition."""
    default = "YES" if partition.name == DEFAULT_GROUP else "NO"
    return _joined(
        [
            f"PartitionName={partition.name}",
            "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
            f"AllocNodes=ALL Default={default} QoS=N/A",
            "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO",
            "MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
            f"Nodes={compress(node.name for node in partition.nodes) or NULL}",
            "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO",
            "OverTimeLimit=NONE PreemptMode=OFF",
            f"State=UP TotalCPUs={partition.cpus} TotalNodes={len(partition.nodes)} SelectTypeParameters=NONE",
            f"JobDefaults={NULL}",
            "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
            f"TRES={partition.tres}",
        ],
        one_line=one_line,
    )


def config_text(endpoint: str) -> str:
    """Returns what programs ask the configuration for."""
    rows = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "ClusterName": "retinue",
        "MaxArraySize": str(MAX_ARRAY_SIZE),
        "MinJobAge": f"{MIN_JOB_AGE} sec",
        "SLURM_VERSION": "22.05.8",
        "SelectType": "select/cons_tres",
        "SlurmctldHost[0]": endpoint,
    }
    return "\n".join(f"{name:<24}= {value}" for name, value in rows.items())


def is_shown(job: Job) -> bool:
    """Returns whether `scontrol show job` without an id shows a job: Slurm forgets those that have ended."""
    return job.state in (JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING, JobState.COMPLETING)


def _joined(lines: Sequence[str], *, one_line: bool) -> str:
    return " ".join(lines) if one_line else "\n   ".join(lines) + "\n"
