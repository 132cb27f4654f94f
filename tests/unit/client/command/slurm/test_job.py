"""Sessions as jobs: states, ids and amounts in Slurm's words, and the lines of squeue and sacct."""

from __future__ import annotations

import datetime as dt

import pytest

from retinue.client.command.slurm.finding import JobId, parse_id, split_ids
from retinue.client.command.slurm.job import Job, JobState
from retinue.client.command.slurm.layout import by_letters, by_names, by_sacct
from retinue.client.command.slurm.sacct import FIELDS, Window, entries_of, is_named, window_of
from retinue.client.command.slurm.scontrol_texts import job_text
from retinue.client.command.slurm.squeue import LETTERS, NAMES, parse_states, rows_of, sort_rows
from retinue.client.errors import UsageError
from retinue.manager.v1 import session_pb2 as pb

_START = 1_000_000
STATE, RESULT = pb.SessionState, pb.SessionResult


def session(number: int = 12, state: str = "RUNNING", *, index: int | None = None, **fields: object) -> pb.Session:
    found = pb.Session(number=number, id=f"id-{number}", owner="ada", **fields)  # type: ignore[arg-type]
    found.state = STATE.Value(f"SESSION_STATE_{state}")
    found.spec.type, found.spec.resource_group, found.spec.project = pb.SESSION_TYPE_BATCH, "default", "team"
    found.spec.name, found.spec.labels["slurm.job-name"] = "train-1234", "Train"
    found.spec.cluster_size, found.spec.priority = 2, 10
    found.create_time.seconds = _START
    if index is not None:
        found.spec.labels.update({"array": "sweep", "array.index": str(index), "array.offset": str(index - 1)})
    if state not in ("PENDING", "CANCELLED"):
        for host, agent in (("main1", "n1"), ("sub1", "n2")):
            kernel = found.kernels.add(hostname=host, agent=agent, slots={"cpu": "2", "mem": "4g"})
            kernel.usage.cpu_time.FromMilliseconds(1500)
            kernel.usage.memory_peak_bytes = 2_000_000
        found.start_time.seconds = _START + 10
    if state in ("TERMINATED", "CANCELLED"):
        found.end_time.seconds = _START + 75
    return found


def job(*arguments: object, now: float = _START + 100, **fields: object) -> Job:
    return Job(session(*arguments, **fields), now)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "result", "reason", "code", "word", "letters", "exit_code"),
    [
        ("PENDING", "UNDEFINED", "INSUFFICIENT_CAPACITY", None, "PENDING", "PD", "0:0"),
        ("PREPARING", "UNDEFINED", "", None, "CONFIGURING", "CF", "0:0"),
        ("RUNNING", "UNDEFINED", "", None, "RUNNING", "R", "0:0"),
        ("TERMINATING", "UNDEFINED", "TERMINATED_BY_USER", None, "COMPLETING", "CG", "0:0"),
        ("TERMINATED", "SUCCESS", "COMMAND_ENDED", 0, "COMPLETED", "CD", "0:0"),
        ("TERMINATED", "FAILED", "COMMAND_FAILED", 3, "FAILED", "F", "3:0"),
        ("TERMINATED", "FAILED", "COMMAND_FAILED", 139, "FAILED", "F", "0:11"),
        ("TERMINATED", "FAILED", "COMMAND_FAILED", 255, "FAILED", "F", "255:0"),
        ("TERMINATED", "UNDEFINED", "TERMINATED_BY_USER", 143, "CANCELLED", "CA", "0:0"),
        ("TERMINATED", "FAILED", "TIME_LIMIT_EXCEEDED", 143, "TIMEOUT", "TO", "0:0"),
        ("TERMINATED", "FAILED", "AGENT_LOST", None, "NODE_FAIL", "NF", "0:0"),
        ("TERMINATED", "UNDEFINED", "PREEMPTED", 143, "PREEMPTED", "PR", "0:0"),
        ("TERMINATED", "FAILED", "OOM_KILLED", 137, "OUT_OF_MEMORY", "OOM", "0:125"),
        ("TERMINATED", "FAILED", "START_TIMEOUT", None, "BOOT_FAIL", "BF", "0:0"),
        ("CANCELLED", "UNDEFINED", "TERMINATED_BY_USER", None, "CANCELLED", "CA", "0:0"),
        ("CANCELLED", "UNDEFINED", "DEPENDENCY_FAILED", None, "CANCELLED", "CA", "0:0"),
        ("CANCELLED", "UNDEFINED", "PENDING_TIMEOUT", None, "DEADLINE", "DL", "0:0"),
    ],
)
def test_states_and_exit_codes(
    state: str, result: str, reason: str, code: int | None, word: str, letters: str, exit_code: str
) -> None:
    one = job(12, state, result=RESULT.Value(f"SESSION_RESULT_{result}"), reason=reason, exit_code=code)
    assert (one.state.name, one.state.value, one.exit_code) == (word, letters, exit_code)


@pytest.mark.parametrize(
    ("state", "result", "reason", "word"),
    [
        ("PENDING", "UNDEFINED", "HELD", "JobHeldUser"),
        ("PENDING", "UNDEFINED", "QUOTA", "AssociationResourceLimit"),
        ("PENDING", "UNDEFINED", "OF_A_LATER_VERSION", "Resources"),
        ("RUNNING", "UNDEFINED", "", "None"),
        ("TERMINATED", "SUCCESS", "COMMAND_ENDED", "None"),
        ("TERMINATED", "FAILED", "COMMAND_FAILED", "NonZeroExitCode"),
        ("TERMINATED", "FAILED", "MOUNT_REFUSED", "JobLaunchFailure"),
        ("TERMINATED", "FAILED", "OOM_KILLED", "NonZeroExitCode"),
        ("TERMINATED", "FAILED", "AGENT_LOST", "NodeDown"),
        ("CANCELLED", "UNDEFINED", "IMAGE_INVALID", "JobLaunchFailure"),
        ("CANCELLED", "UNDEFINED", "DEPENDENCY_FAILED", "DependencyNeverSatisfied"),
    ],
)
def test_reasons_are_words_of_slurm(state: str, result: str, reason: str, word: str) -> None:
    one = job(12, state, result=RESULT.Value(f"SESSION_RESULT_{result}"), reason=reason)
    assert one.reason == word


def test_squeue_prints_what_slurm_does() -> None:
    jobs = [
        job(12),
        *(job(number, "PENDING", index=number - 13, reason="DEPENDENCY") for number in (14, 15, 17)),
        job(20, "PENDING", reason="HELD"),
    ]
    layout = by_letters("%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R", LETTERS, "-o")
    rows = sort_rows(rows_of(jobs, each=False), "P,t,-Q")
    assert [layout.header(), *map(layout.line, rows)] == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "        14_[1-2,4]   default    Train      ada PD       0:00      2 (Dependency)",
        "                20   default    Train      ada PD       0:00      2 (JobHeldUser)",
        "                12   default    Train      ada  R       1:30      2 n[1-2]",
    ]
    each = by_letters("%i %t", LETTERS, "-o")
    assert [each.line(row) for row in rows_of(jobs, each=True)] == ["12 R", "14_1 PD", "14_2 PD", "14_4 PD", "20 PD"]
    assert by_letters("%i|%T", LETTERS, "-o").line(rows[2]) == "12|RUNNING"


def test_columns_by_name_and_what_there_is_none_of() -> None:
    row = next(rows_of([job(12)], each=True))
    layout = by_names("JobID:6,State:.9,name:4x,timelimit", NAMES, "-O")
    assert layout.line(row) == "12      RUNNINGTraixUNLIMITED           "
    assert by_letters("%all", LETTERS, "-o").header().startswith("ACCOUNT|JOBID|")
    with pytest.raises(UsageError, match="%X is none of"):
        by_letters("%X", LETTERS, "-o")
    with pytest.raises(UsageError, match="frob is none of"):
        by_names("jobid,frob", NAMES, "-O")
    with pytest.raises(UsageError, match="'Frob'"):
        by_sacct("JobID,Frob", FIELDS, delimiter=None, trailing=True)


def test_sacct_prints_what_slurm_does() -> None:
    ended = job(13, "TERMINATED", index=1, exit_code=0, result=pb.SESSION_RESULT_SUCCESS)
    waiting = job(14, "PENDING", index=2)
    table = by_sacct("JobID,JobName%4,AllocCPUS,State,ExitCode", FIELDS, delimiter=None, trailing=True)
    assert [table.header(), *map(table.line, entries_of([ended], steps=True))] == [
        "JobID        Job+  AllocCPUS      State ExitCode ",
        "13_1         Tra+          4  COMPLETED      0:0 ",
        "13_1.batch   bat+          4  COMPLETED      0:0 ",
    ]
    plain = by_sacct("jobidraw,jobid,elapsed,totalcpu,maxrss,nodelist,reqmem", FIELDS, delimiter="|", trailing=False)
    assert [plain.line(entry) for entry in entries_of([ended, waiting], steps=True)] == [
        "13|13_1|00:01:05|00:03.000||n[1-2]|8G",
        "13.batch|13_1.batch|00:01:05|00:03.000|1954K|n[1-2]|",
        "14|13_2|00:00:00|00:00:00||None assigned|0M",
    ]
    assert by_sacct("JobID,State", FIELDS, delimiter="|", trailing=True).header() == "JobID|State|"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", JobId(12)),
        ("12_*", JobId(12)),
        ("12.batch", JobId(12, step="batch")),
        ("12+1", JobId(12)),
        ("12_3", JobId(12, frozenset({"3"}))),
        ("12_[1-3,7]%2", JobId(12, frozenset({"1", "2", "3", "7"}))),
        ("12_3.0", JobId(12, frozenset({"3"}), "0")),
        ("a", None),
        ("12_", None),
        ("-1", None),
        ("12_[a]", None),
        ("1234567890123456789", None),
    ],
)
def test_ids_of_jobs(text: str, expected: JobId | None) -> None:
    assert parse_id(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("13", ["13_1", "13_1.batch"]),
        ("13_1", ["13_1", "13_1.batch"]),
        ("13_1.batch", ["13_1.batch"]),
        ("13.batch", ["13_1.batch"]),
        ("13.0", []),
        ("13_1.extern", []),
        ("13.0,13_1.batch", ["13_1.batch"]),
        ("13_2", []),
        ("14.batch", []),
        ("13.0,13", ["13_1", "13_1.batch"]),
    ],
)
def test_an_id_of_a_step_names_its_line_alone(text: str, expected: list[str]) -> None:
    ended = job(13, "TERMINATED", index=1, exit_code=0, result=pb.SESSION_RESULT_SUCCESS)
    named = [parsed for each in split_ids([text]) if (parsed := parse_id(each)) is not None]
    assert [entry.id for entry in entries_of([ended], steps=True) if is_named(entry, named)] == expected


def test_lists_of_ids_and_states() -> None:
    assert split_ids(["1,2_[3,4]", "5"]) == ["1", "2_[3,4]", "5"]
    assert parse_states(["pd,RUNNING"]) == {JobState.PENDING, JobState.RUNNING}
    assert parse_states(["all"]) is None
    assert parse_states(["SUSPENDED,RQ"]) == {JobState.SUSPENDED}
    with pytest.raises(UsageError, match="frob"):
        parse_states(["frob"])


def test_windows_of_sacct() -> None:
    now = dt.datetime(2026, 3, 5, 14, 30, tzinfo=dt.UTC)
    midnight = now.replace(hour=0, minute=0).timestamp()
    assert window_of(None, None, None, now, by_id=False) == Window(midnight, float("inf"), None)
    assert window_of(None, None, None, now, by_id=True).begin == 0
    assert window_of("now-1hour", "14:00", None, now, by_id=False) == Window(
        now.timestamp() - 3600, now.timestamp() - 1800, None
    )
    with pytest.raises(UsageError, match="after end time"):
        window_of("14:00", "13:00", None, now, by_id=False)
    with pytest.raises(UsageError, match="--starttime=soon"):
        window_of("soon", None, None, now, by_id=False)
    ended = job(12, "TERMINATED", exit_code=1, result=pb.SESSION_RESULT_FAILED)
    assert Window(_START + 70, _START + 80, None).has(ended)
    assert not Window(_START + 76, _START + 80, None).has(ended)
    assert not Window(0, _START - 1, None).has(ended)
    assert Window(0, _START + 80, frozenset({JobState.FAILED})).has(ended)
    assert not Window(0, _START + 80, frozenset({JobState.COMPLETED})).has(ended)


def test_scontrol_shows_where_a_job_writes() -> None:
    one = session(14, "RUNNING", index=2)
    one.spec.kernel.working_directory = "/data/x"
    shown = job_text(Job(one, _START + 100), {"JOB_OUTPUT": "/data/%x-%A_%a.%N.out"}, one_line=True).split()
    assert {"JobId=14", "ArrayJobId=13", "ArrayTaskId=2", "WorkDir=/data/x"} <= set(shown)
    assert {"StdOut=/data/Train-13_2.%N.out", "StdErr=/data/Train-13_2.%N.out", "StdIn=/dev/null"} <= set(shown)


def test_what_a_job_waits_for_is_said_by_numbers() -> None:
    one = session(30, "PENDING")
    ended, undefined = STATE.SESSION_STATE_TERMINATED, RESULT.SESSION_RESULT_UNDEFINED
    success, failed = RESULT.SESSION_RESULT_SUCCESS, RESULT.SESSION_RESULT_FAILED
    parents = (
        (one.spec.depends_on, (1, STATE.SESSION_STATE_RUNNING, undefined), (2, ended, success), (3, ended, failed)),
        (
            one.spec.runs_after_failure,
            (4, STATE.SESSION_STATE_PENDING, undefined),
            (5, ended, failed),
            (6, ended, success),
        ),
        (one.spec.runs_after, (7, STATE.SESSION_STATE_TERMINATING, undefined), (8, ended, failed), (0, 0, undefined)),
    )
    for ids, *some in parents:
        for number, state, result in some:
            ids.append(f"id-{number}")
            one.dependencies.add(session_id=f"id-{number}", number=number, state=state, result=result)
    found = "afterok:1(unfulfilled),afterok:3(failed),afternotok:4(unfulfilled),afternotok:6(failed),afterany:7(unfulfilled)"
    assert Job(one, 0).dependency == found
    assert Job(session(31, "PENDING"), 0).dependency == ""
