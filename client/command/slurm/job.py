"""A session as a job of Slurm: its ids, state, times and amounts in Slurm's words. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from retinue.client import enum_names
from retinue.client.command.slurm_scripts.hostlist import compress
from retinue.client.command.slurm_scripts.sbatch_meaning import JOB_NAME_LABEL
from retinue.manager.v1 import session_pb2
from retinue.rpc.core.amounts import DISK, MEMORY, AmountError, parse_amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ARRAY_LABEL, INDEX_LABEL, OFFSET_LABEL = "array", "array.index", "array.offset"
"""Labels of a session of an array: the array's name, its index, and its place in it from 0."""

NULL = "(null)"
"""What Slurm prints for a text that is not there."""

_THOUSANDTHS, _MEBIBYTE, _GIBIBYTE = 1000, 2**20, 2**30
_CPU, _GPU = "cpu", "cuda.device"
_OUT_OF_MEMORY = "OOM_KILLED"
_AFTER_SIGNAL = 128


class JobState(Enum):
    """A state of a job, with the letters that squeue prints."""

    PENDING = "PD"
    CONFIGURING = "CF"
    RUNNING = "R"
    COMPLETING = "CG"
    SUSPENDED = "S"
    COMPLETED = "CD"
    CANCELLED = "CA"
    FAILED = "F"
    TIMEOUT = "TO"
    NODE_FAIL = "NF"
    PREEMPTED = "PR"
    BOOT_FAIL = "BF"
    DEADLINE = "DL"
    OUT_OF_MEMORY = "OOM"

    @property
    def is_ended(self) -> bool:
        """Returns whether a job leaves it no more."""
        return self not in _LIVE


_LIVE = (JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED)
_NOT_ENDED = {
    session_pb2.SESSION_STATE_PENDING: JobState.PENDING,
    session_pb2.SESSION_STATE_SCHEDULED: JobState.CONFIGURING,
    session_pb2.SESSION_STATE_PREPARING: JobState.CONFIGURING,
    session_pb2.SESSION_STATE_RUNNING: JobState.RUNNING,
    session_pb2.SESSION_STATE_TERMINATING: JobState.COMPLETING,
}
_BY_REASON = {
    "TIME_LIMIT_EXCEEDED": JobState.TIMEOUT,
    "OOM_KILLED": JobState.OUT_OF_MEMORY,
    "AGENT_LOST": JobState.NODE_FAIL,
    "AGENT_REVOKED": JobState.NODE_FAIL,
    "AGENT_DRAINED": JobState.NODE_FAIL,
    "FENCED": JobState.NODE_FAIL,
    "EVICTED": JobState.NODE_FAIL,
    "ENGINE_STOPPED": JobState.NODE_FAIL,
    "NODE_REBOOTED": JobState.NODE_FAIL,
    "PREEMPTED": JobState.PREEMPTED,
    "START_TIMEOUT": JobState.BOOT_FAIL,
    "PENDING_TIMEOUT": JobState.DEADLINE,
    "TERMINATED_BY_USER": JobState.CANCELLED,
    "DEPENDENCY_FAILED": JobState.CANCELLED,
    "IDLE_TIMEOUT": JobState.CANCELLED,
    "IDLE_UTILIZATION": JobState.CANCELLED,
    "IDLE_LIFETIME": JobState.TIMEOUT,
    "SCALED_DOWN": JobState.CANCELLED,
    "REPLACED": JobState.CANCELLED,
    "ENDPOINT_DELETED": JobState.CANCELLED,
}
# Why a job waits. Programs know the words of Slurm alone.
_WAITING = {
    "": "None",
    "QUEUED": "None",
    "ARCHITECTURE_MISSING": "BadConstraints",
    "FEATURE_MISSING": "BadConstraints",
    "EXCEEDS_LARGEST_AGENT": "BadConstraints",
    "EXCEEDS_CHOSEN_AGENTS": "BadConstraints",
    "EXCEEDS_GROUP": "PartitionNodeLimit",
    "ISOLATION_NOT_ALLOWED": "PartitionDown",
    "BEHIND_HEAD": "Priority",
    "STRATEGY_DECLINED": "Priority",
    "RESERVED": "Priority",
    "NO_AGENT_AVAILABLE": "ReqNodeNotAvail",
    "QUOTA": "AssociationResourceLimit",
    "RETRY_BACKOFF": "BeginTime",
    "START_BACKOFF": "BeginTime",
    "START_TIME": "BeginTime",
    "DEPENDENCY": "Dependency",
    "HELD": "JobHeldUser",
}
# Why one ended.
_ENDED = {
    JobState.TIMEOUT: "TimeLimit",
    JobState.DEADLINE: "TimeLimit",
    JobState.NODE_FAIL: "NodeDown",
    JobState.BOOT_FAIL: "JobLaunchFailure",
    JobState.OUT_OF_MEMORY: "NonZeroExitCode",
    JobState.PREEMPTED: "Resources",
}
_DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
_OF_COMMAND = ("COMMAND_FAILED", "COMMAND_ENDED")


def reason_word(state: JobState, reason: str) -> str:
    """Returns the word of Slurm for why a job is in its state."""
    if state is JobState.FAILED:
        return "NonZeroExitCode" if reason in _OF_COMMAND else "JobLaunchFailure"
    if state.is_ended:
        return _ENDED.get(state, "DependencyNeverSatisfied" if reason == _DEPENDENCY_FAILED else "None")
    return _WAITING.get(reason, "Resources") if state is JobState.PENDING else "None"


@dataclass(frozen=True)
class Job:
    """A session as a job. Times are in seconds since 1970; amounts are of all kernels together."""

    session: session_pb2.Session
    now: float

    @property
    def number(self) -> int:
        """Returns its own number, of which each session has another."""
        return self.session.number

    @property
    def array(self) -> int | None:
        """Returns the number of its array, which is that of the array's first session; None outside of one."""
        offset = self.session.spec.labels.get(OFFSET_LABEL, "")
        return self.number - int(offset) if offset.isdecimal() and self.index else None

    @property
    def index(self) -> str:
        """Returns its index in its array; empty outside of one."""
        return self.session.spec.labels.get(INDEX_LABEL, "")

    @property
    def id(self) -> str:
        """Returns the id by which people call it: `12`, or `12_3` in an array."""
        return str(self.number) if self.array is None else f"{self.array}_{self.index}"

    @property
    def name(self) -> str:
        """Returns the name that it was submitted with."""
        return self.session.spec.labels.get(JOB_NAME_LABEL, "") or self.session.spec.name

    @cached_property
    def state(self) -> JobState:
        """Returns its state."""
        live = _NOT_ENDED.get(self.session.state)
        if live is not None or not enum_names.is_ended(self.session):
            return live or JobState.PENDING
        return self._end()

    def _end(self) -> JobState:
        session = self.session
        if session.result == session_pb2.SESSION_RESULT_SUCCESS:
            return JobState.COMPLETED
        if any(condition.type == _OUT_OF_MEMORY for condition in session.conditions):
            return JobState.OUT_OF_MEMORY
        if (state := _BY_REASON.get(session.reason)) is not None:
            return state
        failed = session.result == session_pb2.SESSION_RESULT_FAILED or session.exit_code
        return JobState.COMPLETED if session.HasField("exit_code") and not failed else JobState.FAILED

    @property
    def reason(self) -> str:
        """Returns why it waits or ended, in Slurm's word."""
        return reason_word(self.state, self.session.reason)

    @property
    def exit_code(self) -> str:
        """Returns `CODE:SIGNAL` of the script: of one that a signal ended 0 and its number."""
        code = self.session.exit_code
        if self.state in (JobState.FAILED, JobState.COMPLETED):
            number = code - _AFTER_SIGNAL
            return f"0:{number}" if number in signal.valid_signals() else f"{code}:0"
        # As Slurm: what ended it is in its state.
        return "0:125" if self.state is JobState.OUT_OF_MEMORY else "0:0"

    @property
    def nodes(self) -> Sequence[str]:
        """Returns the agents that it is or was on, each once."""
        return list(dict.fromkeys(kernel.agent for kernel in self.session.kernels if kernel.agent))

    @property
    def node_list(self) -> str:
        """Returns these in one word; empty before it is placed."""
        return compress(self.nodes)

    @property
    def node_count(self) -> int:
        """Returns how many nodes Slurm would say that it has: a kernel for each."""
        return max(1, self.session.spec.cluster_size, len(self.session.kernels))

    @property
    def submit_time(self) -> float | None:
        """Returns when it was submitted."""
        return enum_names.time_of(self.session, "create_time")

    @property
    def eligible_time(self) -> float | None:
        """Returns from when it may start; None while it is held."""
        if self.session.spec.hold and self.state is JobState.PENDING:
            return None
        earliest = enum_names.time_of(self.session.spec, "earliest_start_time")
        return max(filter(None, (self.submit_time, earliest)), default=None)

    @property
    def start_time(self) -> float | None:
        """Returns when it started."""
        return enum_names.time_of(self.session, "start_time")

    @property
    def end_time(self) -> float | None:
        """Returns when it ended."""
        return enum_names.time_of(self.session, "end_time")

    @property
    def expected_end(self) -> float | None:
        """Returns when it ended, or will by its time limit."""
        if self.end_time is not None or self.start_time is None or not self.time_limit:
            return self.end_time
        return self.start_time + self.time_limit

    @property
    def time_limit(self) -> int:
        """Returns its time limit in seconds; 0 for none."""
        return self.session.spec.time_limit.seconds

    @property
    def elapsed(self) -> float:
        """Returns how long it has run."""
        return 0.0 if self.start_time is None else max(0.0, (self.end_time or self.now) - self.start_time)

    @cached_property
    def _slots(self) -> Mapping[str, int]:
        kernels = self.session.kernels
        held = [_amounts(kernel.slots) for kernel in kernels if kernel.slots]
        asked = _amounts(self.session.spec.kernel.slots)
        counted = held or [asked] * self.node_count
        return {name: sum(amounts.get(name, 0) for amounts in counted) for name in {n for a in counted for n in a}}

    @property
    def cpus(self) -> int:
        """Returns its processors, rounded up to whole ones."""
        return max(1, -(-self._slots.get(_CPU, 0) // _THOUSANDTHS))

    @property
    def gpus(self) -> int:
        """Returns its GPUs."""
        return self._slots.get(_GPU, 0) // _THOUSANDTHS

    @property
    def memory(self) -> int:
        """Returns its memory in bytes."""
        return self._slots.get(MEMORY, 0)

    @property
    def memory_of_node(self) -> int:
        """Returns the memory of one kernel in bytes."""
        return self.memory // self.node_count

    @property
    def disk_of_node(self) -> int:
        """Returns the disk of one kernel in bytes."""
        return self._slots.get(DISK, 0) // self.node_count

    @property
    def tres(self) -> str:
        """Returns what it holds as Slurm lists it."""
        gpus = f",gres/gpu={self.gpus}" if self.gpus else ""
        return f"cpu={self.cpus},mem={megabytes(self.memory)},node={self.node_count},billing={self.cpus}{gpus}"

    @property
    def cpu_seconds(self) -> float | None:
        """Returns the processor time that it used; None where that is not known, as before its end."""
        times = [
            kernel.usage.cpu_time.ToNanoseconds() / 1e9
            for kernel in self.session.kernels
            if kernel.HasField("usage") and kernel.usage.HasField("cpu_time")
        ]
        return sum(times) if times else None

    @property
    def peak_memory(self) -> int | None:
        """Returns the most memory that one of its kernels used, in bytes; None where that is not known."""
        return max(
            (
                kernel.usage.memory_peak_bytes
                for kernel in self.session.kernels
                if kernel.HasField("usage") and kernel.usage.HasField("memory_peak_bytes")
            ),
            default=None,
        )

    @property
    def directory(self) -> str:
        """Returns where its command starts, unless its image says."""
        return self.session.spec.kernel.working_directory or "/home/work"

    @property
    def dependency(self) -> str:
        """Returns what it still waits for, by numbers, as `afterok:12(unfulfilled),afterany:13(unfulfilled)`, or with
        `(failed)` what can no longer come; empty for nothing.
        """
        spec, parents = self.session.spec, {parent.session_id: parent for parent in self.session.dependencies}
        kinds = (("afterok", spec.depends_on), ("afternotok", spec.runs_after_failure), ("afterany", spec.runs_after))
        listed = [(kind, parents[parent]) for kind, ids in kinds for parent in ids if parent in parents]
        states = [(kind, parent.number, _progress(kind, parent)) for kind, parent in listed if parent.number]
        return ",".join(f"{kind}:{number}({progress})" for kind, number, progress in states if progress)


def _progress(kind: str, parent: session_pb2.Dependency) -> str:
    """Returns the word of Slurm for how far a dependency has come; empty once it is fulfilled."""
    if parent.state not in (session_pb2.SESSION_STATE_TERMINATED, session_pb2.SESSION_STATE_CANCELLED):
        return "unfulfilled"
    succeeded = parent.result == session_pb2.SESSION_RESULT_SUCCESS
    return "failed" if (kind == "afterok" and not succeeded) or (kind == "afternotok" and succeeded) else ""


def _amounts(slots: Mapping[str, str]) -> dict[str, int]:
    found = {}
    for name, amount in slots.items():
        try:
            found[name] = parse_amount(name, amount)
        except AmountError:
            # As a later version of the server writes it.
            continue
    return found


def megabytes(amount: int) -> str:
    """Returns an amount of memory as Slurm has it: `256M`, `4G`."""
    if amount and amount % _GIBIBYTE == 0:
        return f"{amount // _GIBIBYTE}G"
    return f"{-(-amount // _MEBIBYTE)}M"


def jobs_of(sessions: Iterable[session_pb2.Session], now: float) -> list[Job]:
    """Returns sessions as jobs, by their numbers, the oldest first."""
    return sorted((Job(session, now) for session in sessions), key=lambda job: job.number)
