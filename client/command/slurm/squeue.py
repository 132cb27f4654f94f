"""`retinue squeue`: sessions that wait and run, as Slurm lists jobs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.slurm.finding import jobs_of_ids, list_jobs, split_ids, split_words, user_names
from retinue.client.command.slurm.job import NULL, Job, JobState, megabytes
from retinue.client.command.slurm.layout import Field, Layout, by_letters, by_names
from retinue.client.command.slurm.slurm_command import LEFT_OUT, NO_SUCH_JOB, SlurmCommand, fail, version_option
from retinue.client.command.slurm_scripts.hostlist import expand, ranges
from retinue.client.command.slurm_scripts.times import moment_text, short_span
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from retinue.client.client import Client

MIN_JOB_AGE = 86400
"""Seconds for which jobs that have ended are listed without their ids; sacct lists older ones."""

_DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
_START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"


class Row:
    """A line: a job, or waiting jobs of an array together."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        """At least one job."""
        self.job: Job = jobs[0]
        self.jobs = jobs

    @property
    def id(self) -> str:
        """Returns `12`, `12_3` or `12_[3-7]`."""
        return self.job.id if len(self.jobs) == 1 else f"{self.job.array}_[{self.indices}]"

    @property
    def indices(self) -> str:
        """Returns the indices in the array."""
        if self.job.array is None:
            return "N/A"
        return ranges(int(job.index) for job in self.jobs if job.index.isdecimal())


def _of(value: Callable[[Job], str]) -> Callable[[Row], str]:
    return lambda row: safe(value(row.job))


def _reason_or_nodes(job: Job) -> str:
    return job.node_list if job.nodes and job.state is not JobState.PENDING else f"({job.reason})"


def _limit(job: Job) -> str:
    return short_span(job.time_limit) if job.time_limit else "UNLIMITED"


def _left(job: Job) -> str:
    return short_span(max(0.0, job.time_limit - job.elapsed)) if job.time_limit else "UNLIMITED"


def _moment(value: Callable[[Job], float | None]) -> Callable[[Row], str]:
    return lambda row: moment_text(value(row.job), "N/A")


def _gres(job: Job) -> str:
    return f"gres/gpu:{job.gpus // job.node_count}" if job.gpus else "N/A"


# By the letter of `-o` and the names of `-O`, each with its title there.
_FIELDS: tuple[tuple[str, str, Field[Row]], ...] = (
    ("a", "account", Field("ACCOUNT", _of(lambda job: job.session.spec.project))),
    ("A", "jobid", Field("JOBID", _of(lambda job: str(job.number)))),
    ("b", "tresperjob tresalloc tres-per-node trespernode", Field("TRES_PER_NODE", _of(_gres))),
    ("B", "batchhost", Field("EXEC_HOST", _of(lambda job: job.nodes[0] if job.nodes else "n/a"))),
    ("c", "mincpus", Field("MIN_CPUS", _of(lambda job: str(job.cpus // job.node_count)))),
    ("C", "numcpus", Field("CPUS", _of(lambda job: str(job.cpus)))),
    ("d", "mintmpdisk", Field("MIN_TMP_DISK", _of(lambda job: megabytes(job.disk_of_node)))),
    ("D", "numnodes", Field("NODES", _of(lambda job: str(job.node_count)))),
    ("e", "endtime", Field("END_TIME", _moment(lambda job: job.expected_end))),
    ("E", "dependency", Field("DEPENDENCY", _of(lambda job: job.dependency or NULL))),
    ("f", "feature", Field("FEATURES", _of(lambda job: job.session.spec.architecture or NULL))),
    ("F", "arrayjobid", Field("ARRAY_JOB_ID", _of(lambda job: str(job.array or job.number)))),
    ("i", "jobarrayid", Field("JOBID", lambda row: safe(row.id))),
    ("j", "name", Field("NAME", _of(lambda job: job.name))),
    ("k", "comment", Field("COMMENT", _of(lambda job: job.session.spec.labels.get("comment", NULL)))),
    ("K", "arraytaskid", Field("ARRAY_TASK_ID", lambda row: row.indices)),
    ("l", "timelimit", Field("TIME_LIMIT", _of(_limit))),
    ("L", "timeleft", Field("TIME_LEFT", _of(_left))),
    ("m", "minmemory", Field("MIN_MEMORY", _of(lambda job: megabytes(job.memory_of_node)))),
    ("M", "timeused", Field("TIME", _of(lambda job: short_span(job.elapsed)))),
    ("n", "reqnodes", Field("REQ_NODES", _of(lambda job: ",".join(job.session.spec.agents)))),
    ("N", "nodelist", Field("NODELIST", _of(lambda job: job.node_list))),
    ("o", "command", Field("COMMAND", _of(lambda job: job.name))),
    ("p", "priority", Field("PRIORITY", _of(lambda job: f"{job.session.spec.priority / 100:.14f}"))),
    ("P", "partition", Field("PARTITION", _of(lambda job: job.session.spec.resource_group))),
    ("q", "qos", Field("QOS", _of(lambda _: "normal"))),
    ("Q", "prioritylong", Field("PRIORITY", _of(lambda job: str(job.session.spec.priority)))),
    ("r", "reason", Field("REASON", _of(lambda job: job.reason))),
    ("R", "reasonlist", Field("NODELIST(REASON)", _of(_reason_or_nodes))),
    ("S", "starttime", Field("START_TIME", _moment(lambda job: job.start_time))),
    ("t", "statecompact", Field("ST", _of(lambda job: job.state.value))),
    ("T", "state", Field("STATE", _of(lambda job: job.state.name))),
    ("u", "username", Field("USER", _of(lambda job: job.session.owner))),
    ("v", "reservation", Field("RESERVATION", _of(lambda _: NULL))),
    ("V", "submittime", Field("SUBMIT_TIME", _moment(lambda job: job.submit_time))),
    ("w", "wckey", Field("WCKEY", _of(lambda _: NULL))),
    ("W", "licenses", Field("LICENSES", _of(lambda _: NULL))),
    ("x", "excnodes", Field("EXC_NODES", _of(lambda _: ""))),
    ("y", "nice", Field("NICE", _of(lambda _: "0"))),
    ("Y", "schednodes", Field("SCHEDNODES", _of(lambda _: NULL))),
    ("Z", "workdir", Field("WORK_DIR", _of(lambda job: job.directory))),
    ("", "eligibletime", Field("ELIGIBLE_TIME", _moment(lambda job: job.eligible_time))),
    ("", "exit_code exitcode", Field("EXIT_CODE", _of(lambda job: job.exit_code))),
    ("", "restartcnt", Field("RESTART_COUNT", _of(lambda job: str(job.session.retries)))),
    ("", "requeue", Field("REQUEUE", _of(lambda job: str(int(job.session.spec.retry.max_attempts > 1))))),
    ("", "batchflag", Field("BATCH_FLAG", _of(lambda _: "1"))),
    ("", "numtasks", Field("TASKS", _of(lambda job: str(job.node_count)))),
    ("", "cluster", Field("CLUSTER", _of(lambda _: "retinue"))),
)
LETTERS: Mapping[str, Field[Row]] = {letter: field for letter, _, field in _FIELDS if letter}
NAMES: Mapping[str, Field[Row]] = {name: field for _, names, field in _FIELDS for name in names.split()}
_ALL_STATES = "ALL"


def parse_states(values: Iterable[str]) -> frozenset[JobState] | None:
    """Returns the states of a list of names or letters, in any case; None for all. Raises UsageError."""
    found = set[JobState]()
    for word in split_words(values):
        upper = word.upper()
        if upper == _ALL_STATES:
            return None
        state = next((one for one in JobState if upper in (one.name, one.value)), None)
        if state is None and upper not in _OTHER_STATES:
            raise UsageError(f"Invalid job state specified: {word}")
        if state is not None:
            found.add(state)
    return frozenset(found)


# States of Slurm that no job has here.
_OTHER_STATES = frozenset(
    {
        *("CANCELLED+", "STOPPED", "ST", "SIGNALING", "SI", "STAGE_OUT", "SO", "RESIZING", "RS", "REVOKED", "RV"),
        *("REQUEUED", "RQ", "REQUEUE_HOLD", "RH", "REQUEUE_FED", "RF", "RESV_DEL_HOLD", "RD", "SPECIAL_EXIT", "SE"),
    }
)


def rows_of(jobs: Iterable[Job], *, each: bool) -> Iterator[Row]:
    """Yields the lines of a list: waiting jobs of an array that wait for the same are one, unless `each`."""
    waiting: dict[tuple[int, str], list[Job]] = {}
    singles = []
    for job in jobs:
        if not each and job.array is not None and job.state is JobState.PENDING:
            waiting.setdefault((job.array, job.reason), []).append(job)
        else:
            singles.append([job])
    yield from map(Row, [*waiting.values(), *singles])


_STATE_ORDER = list(JobState)


def sort_rows(rows: Iterable[Row], order: str) -> list[Row]:
    """Returns lines in an order such as `P,t,-p`: letters of `-o`, with - before those that fall. Raises UsageError."""
    found = sorted(rows, key=lambda row: row.job.number)
    for part in reversed(split_words([order])):
        falling, letter = part.startswith("-"), part.lstrip("+-")
        if letter not in LETTERS:
            raise UsageError(f"--sort={order}: {part} is none of {' '.join(LETTERS)}")
        found.sort(key=_sort_key(letter), reverse=falling)
    return found


def _sort_key(letter: str) -> Callable[[Row], tuple[float, str]]:
    value = LETTERS[letter].value
    if letter in "tT":
        return lambda row: (_STATE_ORDER.index(row.job.state), "")
    if letter in "AiFM":
        return lambda row: (row.job.elapsed if letter == "M" else row.job.number, "")

    def key(row: Row) -> tuple[float, str]:
        text = value(row)
        try:
            return float(text), ""
        except ValueError:
            return 0.0, text

    return key


@click.command("squeue", cls=SlurmCommand, optional={"--json": "1"})
@click.option(
    "-A",
    "--account",
    "accounts",
    multiple=True,
    envvar="SQUEUE_ACCOUNT",
    metavar="PROJECT,…",
    help="Only these projects.",
)
@click.option("-a", "--all", is_flag=True, expose_value=False, help="All groups, as always.")
@click.option("-r", "--array", "each", is_flag=True, envvar="SQUEUE_ARRAY", help="A line for each session of an array.")
@click.option("--array-unique", is_flag=True, help="As --array.")
@click.option("-M", "--clusters", expose_value=False, metavar="NAME", help="There is one cluster.")
@click.option("--federation", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-h", "--noheader", is_flag=True, help="Print no header.")
@click.option("--hide", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-i", "--iterate", type=click.IntRange(1), metavar="SECONDS", help="Again and again.")
@click.option("-j", "--jobs", "ids", multiple=True, metavar="ID,…", help="These: 12, 12_3 or 12_[1-3].")
@click.option("--json", "as_json", help="As JSON.")
@click.option("--local", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-l", "--long", "long_", is_flag=True, help="With the time limit.")
@click.option("--me", is_flag=True, help="Only the caller's.")
@click.option("-n", "--name", "names", multiple=True, envvar="SQUEUE_NAMES", metavar="NAME,…", help="Only these names.")
@click.option("-w", "--nodelist", "nodes", multiple=True, metavar="AGENT,…", help="Only these agents.")
@click.option("-o", "--format", "letters", envvar="SQUEUE_FORMAT", metavar='"%i %t"', help="Columns by letters.")
@click.option("-O", "--Format", "columns", envvar="SQUEUE_FORMAT2", metavar="jobid,state:20", help="Columns by names.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    multiple=True,
    envvar="SQUEUE_PARTITION",
    metavar="GROUP,…",
    help="Only these groups.",
)
@click.option("-q", "--qos", expose_value=False, metavar="NAME", help=LEFT_OUT)
@click.option("-S", "--sort", "order", envvar="SQUEUE_SORT", metavar="P,-t", help="By letters of columns.")
@click.option("--start", is_flag=True, help="List pending jobs with their latest start time.")
@click.option(
    "-t",
    "--states",
    multiple=True,
    envvar="SQUEUE_STATES",
    metavar="PD,R|all",
    help="Also those that ended in the last day.",
)
@click.option("-u", "--user", "users", multiple=True, envvar="SQUEUE_USERS", metavar="USER,…", help="$USER is you.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help=LEFT_OUT)
@version_option
@pass_connection
@asynchronous
async def squeue_command(
    connection: Connection,
    *,
    accounts: tuple[str, ...],
    each: bool,
    array_unique: bool,
    noheader: bool,
    iterate: int | None,
    ids: tuple[str, ...],
    as_json: str | None,
    long_: bool,
    me: bool,
    names: tuple[str, ...],
    nodes: tuple[str, ...],
    letters: str | None,
    columns: str | None,
    partitions: tuple[str, ...],
    order: str | None,
    start: bool,
    states: tuple[str, ...],
    users: tuple[str, ...],
) -> int:
    """List sessions that wait or run, as Slurm's squeue lists jobs.

    A job's id is its session's number; a session of an array is ARRAY_INDEX. A node is a kernel in --nodes and NODES,
    and an agent in NODELIST; a partition is a resource group, an account a project.
    """
    layout = _layout(letters, columns, long_=long_, start=start)
    wanted = parse_states(states) if states else frozenset({JobState.PENDING} if start else _WAITING_AND_RUNNING)
    accept = _accepting(
        projects=split_words(accounts), names=split_words(names), groups=split_words(partitions), states=wanted,
        nodes=expand(",".join(nodes), "--nodelist"),
    )  # fmt: skip
    async with connection.client() as client:
        while True:
            found, owners = await _jobs(client, split_ids(ids), split_words(users), wanted, me=me)
            jobs = [job for job in found if accept(job) and (owners is None or job.session.owner in owners)]
            rows = sort_rows(rows_of(jobs, each=each or array_unique), order or "P,t,-Q")
            if as_json:
                click.echo(json.dumps({"jobs": [as_document(row.job) for row in rows]}, indent=1))
            else:
                if iterate or long_:
                    click.echo(time.strftime("%a %b %d %H:%M:%S %Y"))
                for line in (*(() if noheader else (layout.header(),)), *map(layout.line, rows)):
                    click.echo(line)
            if not iterate:
                return ExitCode.OK
            await _pause(iterate)


_WAITING_AND_RUNNING = (JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING, JobState.COMPLETING)


async def _pause(seconds: float) -> None:
    import asyncio  # noqa: PLC0415  # few calls need it

    click.echo()
    await asyncio.sleep(seconds)


def _layout(letters: str | None, columns: str | None, *, long_: bool, start: bool) -> Layout[Row]:
    if columns is not None:
        return by_names(columns, NAMES, "--Format")
    return by_letters(letters or (_START if start else _LONG if long_ else _DEFAULT), LETTERS, "--format")


async def _jobs(
    client: Client, ids: Sequence[str], users: Sequence[str], states: frozenset[JobState] | None, *, me: bool
) -> tuple[list[Job], Sequence[str] | None]:
    """Returns jobs of ids or of users, and the owners that count; None for all."""
    owners = await user_names(client, users, mine=me) if users or me else None
    if ids:
        found, missing = await jobs_of_ids(client, ids)
        if not found and len(missing) == len(ids) == 1:
            fail("", [NO_SUCH_JOB])
        return found, owners
    ended = states is None or any(state.is_ended for state in states)
    jobs = await list_jobs(client, show_ended=ended, owners=owners)
    return [job for job in jobs if job.end_time is None or job.now - job.end_time < MIN_JOB_AGE], owners


def _accepting(
    *,
    projects: Sequence[str],
    names: Sequence[str],
    groups: Sequence[str],
    states: frozenset[JobState] | None,
    nodes: Sequence[str],
) -> Callable[[Job], bool]:
    """Returns a rule of which jobs are listed: in each list that is not empty."""

    def accept(job: Job) -> bool:
        spec = job.session.spec
        return (
            (not projects or spec.project in projects)
            and (not names or job.name in names)
            and (not groups or spec.resource_group in groups)
            and (states is None or job.state in states)
            and (not nodes or not set(nodes).isdisjoint(job.nodes))
        )

    return accept


def as_document(job: Job) -> dict[str, object]:
    """Returns a job as a document with the names that squeue's has."""
    return {
        "account": job.session.spec.project,
        "array_job_id": job.array or 0,
        "array_task_id": int(job.index) if job.index.isdecimal() else None,
        "cluster": "retinue",
        "comment": job.session.spec.labels.get("comment", ""),
        "cpus": job.cpus,
        "dependency": job.dependency,
        "end_time": int(job.expected_end or 0),
        "exit_code": job.session.exit_code,
        "job_id": job.number,
        "job_state": job.state.name,
        "name": job.name,
        "node_count": job.node_count,
        "nodes": job.node_list,
        "partition": job.session.spec.resource_group,
        "priority": job.session.spec.priority,
        "start_time": int(job.start_time or 0),
        "state_reason": job.reason,
        "submit_time": int(job.submit_time or 0),
        "time_limit": job.time_limit // 60 if job.time_limit else None,
        "tres_req_str": job.tres,
        "user_name": job.session.owner,
    }
