"""`retinue sacct`: sessions of a time, also ended ones, as Slurm accounts for jobs."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.slurm.finding import (
    BATCH,
    JobId,
    jobs_of_ids,
    list_jobs,
    parse_id,
    split_ids,
    split_words,
    user_names,
)
from retinue.client.command.slurm.job import Job, JobState, megabytes
from retinue.client.command.slurm.layout import Field, by_sacct
from retinue.client.command.slurm.slurm_command import LEFT_OUT, SlurmCommand, version_option
from retinue.client.command.slurm.squeue import as_document, parse_states
from retinue.client.command.slurm_scripts.hostlist import expand
from retinue.client.command.slurm_scripts.times import long_span, moment_text, parse_moment
from retinue.client.errors import UsageError
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_DEFAULT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
_BRIEF = "JobID,State,ExitCode"
_LONG = (
    "JobID,JobIDRaw,JobName,Partition,MaxRSS,NTasks,AllocCPUS,Elapsed,State,ExitCode,ReqMem,ReqCPUS,AllocTRES,NodeList"
)
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """A line: a job, or its batch step, which is its script in main1 with all that this started."""

    job: Job
    batch: bool = False

    @property
    def id(self) -> str:
        """Returns `12`, `12_3` or `12.batch`."""
        return f"{self.job.id}.{BATCH}" if self.batch else self.job.id


def _of(value: Callable[[Job], str]) -> Callable[[Entry], str]:
    return lambda entry: safe(value(entry.job))


def _of_job(value: Callable[[Job], str]) -> Callable[[Entry], str]:
    """Returns a value that steps have not."""
    return lambda entry: "" if entry.batch else safe(value(entry.job))


def _of_step(value: Callable[[Job], str]) -> Callable[[Entry], str]:
    """Returns a value that only steps have, as they are what is measured."""
    return lambda entry: safe(value(entry.job)) if entry.batch else ""


def _moment(value: Callable[[Job], float | None], unknown: str = "Unknown") -> Callable[[Entry], str]:
    return lambda entry: moment_text(value(entry.job), unknown)


def _state(entry: Entry) -> str:
    state = entry.job.state
    if state is JobState.CONFIGURING:
        return JobState.PENDING.name
    # What ended a job ended its script.
    return JobState.CANCELLED.name if entry.batch and state is JobState.TIMEOUT else state.name


def _exit_code(entry: Entry) -> str:
    ended_from_outside = entry.job.state in (JobState.TIMEOUT, JobState.CANCELLED, JobState.PREEMPTED)
    return "0:15" if entry.batch and ended_from_outside else entry.job.exit_code


def _cpu_time(job: Job) -> str:
    seconds = job.cpu_seconds
    if seconds is None:
        return "00:00:00"
    if seconds >= _HOUR:
        return long_span(seconds)
    return f"{int(seconds) // 60:02d}:{seconds % 60:06.3f}"


_HOUR = 3600


def _peak(job: Job) -> str:
    peak = job.peak_memory
    return "" if peak is None else f"{-(-peak // _KIB)}K"


def _limit(job: Job) -> str:
    return long_span(job.time_limit) if job.time_limit else "UNLIMITED"


_COLUMNS: tuple[tuple[str, int, Callable[[Entry], str]], ...] = (
    ("Account", 10, _of(lambda job: job.session.spec.project)),
    ("AdminComment", 19, _of(lambda _: "")),
    ("AllocCPUS", 10, _of(lambda job: str(job.cpus if job.nodes else 0))),
    ("AllocNodes", 10, _of(lambda job: str(job.node_count if job.nodes else 0))),
    ("AllocTRES", 10, _of(lambda job: job.tres if job.nodes else "")),
    ("AssocID", 7, _of(lambda _: "0")),
    ("AveCPU", 10, _of_step(_cpu_time)),
    ("AveRSS", 10, _of_step(_peak)),
    ("AveVMSize", 10, _of_step(_peak)),
    ("Cluster", 10, _of(lambda _: "retinue")),
    ("Comment", 14, _of_job(lambda job: job.session.spec.labels.get("comment", ""))),
    ("Constraints", 19, _of_job(lambda job: job.session.spec.architecture)),
    ("CPUTime", 10, _of(lambda job: long_span(job.elapsed * job.cpus))),
    ("CPUTimeRAW", 10, _of(lambda job: str(int(job.elapsed * job.cpus)))),
    ("DerivedExitCode", 15, _of_job(lambda job: job.exit_code)),
    ("Elapsed", 10, _of(lambda job: long_span(job.elapsed))),
    ("ElapsedRaw", 10, _of(lambda job: str(int(job.elapsed)))),
    ("Eligible", 19, _moment(lambda job: job.eligible_time)),
    ("End", 19, _moment(lambda job: job.end_time)),
    ("ExitCode", 8, _exit_code),
    ("Flags", 19, _of_job(lambda _: "")),
    ("JobID", -12, lambda entry: entry.id),
    ("JobIDRaw", -12, lambda entry: f"{entry.job.number}.batch" if entry.batch else str(entry.job.number)),
    ("JobName", 10, lambda entry: "batch" if entry.batch else safe(entry.job.name)),
    ("Layout", 9, _of_step(lambda _: "Unknown")),
    ("MaxRSS", 10, _of_step(_peak)),
    ("MaxRSSNode", 10, _of_step(lambda job: job.nodes[0] if job.nodes else "")),
    ("MaxVMSize", 10, _of_step(_peak)),
    ("NCPUS", 10, _of(lambda job: str(job.cpus))),
    ("NNodes", 8, _of(lambda job: str(job.node_count))),
    ("NodeList", 15, _of(lambda job: job.node_list or "None assigned")),
    ("NTasks", 8, _of_step(lambda _: "1")),
    ("Partition", 10, _of_job(lambda job: job.session.spec.resource_group)),
    ("Priority", 10, _of_job(lambda job: str(job.session.spec.priority))),
    ("QOS", 10, _of_job(lambda _: "normal")),
    ("Reason", 22, _of_job(lambda job: job.reason)),
    ("ReqCPUS", 8, _of(lambda job: str(job.cpus))),
    ("ReqMem", 10, _of_job(lambda job: megabytes(job.memory))),
    ("ReqNodes", 8, _of(lambda job: str(job.node_count))),
    ("ReqTRES", 10, _of_job(lambda job: job.tres)),
    ("Reservation", 20, _of_job(lambda _: "")),
    ("Start", 19, _moment(lambda job: job.start_time)),
    ("State", 10, _state),
    ("Submit", 19, _moment(lambda job: job.submit_time)),
    ("Suspended", 10, _of(lambda _: "00:00:00")),
    ("SystemCPU", 10, _of(lambda _: "00:00:00")),
    ("Timelimit", 10, _of_job(_limit)),
    ("TimelimitRaw", 12, _of_job(lambda job: str(job.time_limit // 60) if job.time_limit else "UNLIMITED")),
    ("TotalCPU", 10, _of(_cpu_time)),
    ("User", 9, _of_job(lambda job: job.session.owner)),
    ("UserCPU", 10, _of(_cpu_time)),
    ("WCKey", 10, _of_job(lambda _: "")),
    ("WorkDir", 20, _of_job(lambda job: job.directory)),
)
FIELDS: Mapping[str, Field[Entry]] = {name.lower(): Field(name, value, width) for name, width, value in _COLUMNS}


def entries_of(jobs: Sequence[Job], *, steps: bool) -> Iterator[Entry]:
    """Yields the lines of jobs, with `steps` also those of the scripts that were started."""
    for job in jobs:
        yield Entry(job)
        if steps and job.start_time is not None and job.session.spec.type == session_pb2.SESSION_TYPE_BATCH:
            yield Entry(job, batch=True)


def is_named(entry: Entry, named: Sequence[JobId]) -> bool:
    """Returns whether one of these ids names a line. An id of a step names that alone, and none where there is no line
    of it: what srun has started is known in the kernel only, while it runs.
    """
    return any(each.has(entry.job) and (not each.step or (entry.batch and each.step == BATCH)) for each in named)


@dataclass(frozen=True, slots=True)
class Window:
    """A time, of which jobs are listed that were there; with states, that were in one of them at its end or in it."""

    begin: float
    end: float
    states: frozenset[JobState] | None

    def has(self, job: Job) -> bool:
        """Returns whether a job counts."""
        first = job.submit_time or 0.0
        if first > self.end or (job.end_time is not None and job.end_time < self.begin):
            return False
        if self.states is None:
            return True
        if job.state in self.states:
            return True
        # It was in these states, although it is not any more.
        return (JobState.RUNNING in self.states and job.start_time is not None and job.start_time <= self.end) or (
            JobState.PENDING in self.states and self.begin <= first
        )


def _time(text: str, now: dt.datetime, option: str) -> float:
    moment = parse_moment(text, now, future=False)
    if moment is None:
        raise UsageError(f"Invalid time specification ({option}={text}): write 2026-01-31T12:00, 01/31, or now-2days")
    return moment.timestamp()


def window_of(
    begin: str | None, end: str | None, states: frozenset[JobState] | None, now: dt.datetime, *, by_id: bool
) -> Window:
    """Returns the time that options name: without them today, of jobs by their ids all time; with states alone now.
    Raises UsageError.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    last = now.timestamp() if end is None else _time(end, now, "--endtime")
    first = 0.0 if by_id else midnight.timestamp() if states is None else last
    if begin is not None:
        first = _time(begin, now, "--starttime")
    if begin is not None and end is not None and first > last:
        raise UsageError("Start time requested is after end time.")
    # The clock of this machine may be behind that of the manager.
    return Window(first, last if end is not None and end.strip().lower() != "now" else float("inf"), states)


@click.command("sacct", cls=SlurmCommand, optional={"--json": "1"})
@click.option("-A", "--accounts", metavar="PROJECT,…", help="Only these projects.")
@click.option("-L", "--allclusters", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-X", "--allocations", is_flag=True, help="No lines of steps.")
@click.option("-a", "--allusers", is_flag=True, help="List all users that the caller may read.")
@click.option("-b", "--brief", is_flag=True, help=f"As --format {_BRIEF}.")
@click.option("-M", "--clusters", expose_value=False, metavar="NAME", help="There is one cluster.")
@click.option("--delimiter", metavar="TEXT", help="Between columns, with -p and -P.")
@click.option("-D", "--duplicates", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-E", "--endtime", metavar="TIME", help="Only sessions before this time.")
@click.option("--federation", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-o", "--format", "columns", envvar="SACCT_FORMAT", metavar="JobID,State%20", help="The columns.")
@click.option("-e", "--helpformat", is_flag=True, help="Print the names of columns.")
@click.option("-j", "--jobs", "ids", multiple=True, metavar="ID,…", help="These: 12, 12_3, 12_[1-3] or 12.batch.")
@click.option("--json", "as_json", help="As JSON.")
@click.option("--local", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-l", "--long", "long_", is_flag=True, help="Many columns.")
@click.option("--name", "names", metavar="NAME,…", help="Only these names.")
@click.option("--noconvert", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-N", "--nodelist", "nodes", metavar="AGENT,…", help="Only these agents.")
@click.option("-n", "--noheader", is_flag=True, help="Print no header.")
@click.option("-p", "--parsable", is_flag=True, help="End each column with |.")
@click.option("-P", "--parsable2", is_flag=True, help="Separate columns by |.")
@click.option("-r", "--partition", "groups", metavar="GROUP,…", help="Only these groups.")
@click.option("-q", "--qos", expose_value=False, metavar="NAME", help=LEFT_OUT)
@click.option("-S", "--starttime", metavar="TIME", help="Only sessions after this time.")
@click.option("-s", "--state", "states", metavar="CD,F|all", help="Only these states.")
@click.option("-T", "--truncate", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-u", "--user", "--uid", "users", metavar="USER,…", help="$USER is you.")
@click.option("--units", expose_value=False, metavar="KMGTP", help=LEFT_OUT)
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-W", "--wckeys", expose_value=False, metavar="NAME", help=LEFT_OUT)
@version_option
@pass_connection
@asynchronous
async def sacct_command(
    connection: Connection,
    *,
    accounts: str | None,
    allocations: bool,
    allusers: bool,
    brief: bool,
    delimiter: str | None,
    endtime: str | None,
    columns: str | None,
    helpformat: bool,
    ids: tuple[str, ...],
    as_json: str | None,
    long_: bool,
    names: str | None,
    nodes: str | None,
    noheader: bool,
    parsable: bool,
    parsable2: bool,
    groups: str | None,
    starttime: str | None,
    states: str | None,
    users: str | None,
) -> int:
    """List sessions of a time, by default the caller's of today, as Slurm's sacct lists jobs.

    A job's id is its session's number; a session of an array is ARRAY_INDEX. Sessions are kept as long as the manager
    keeps ended ones.
    """
    if helpformat:
        for begin in range(0, len(_COLUMNS), 4):
            click.echo(" ".join(f"{name:<19}" for name, _, _ in _COLUMNS[begin : begin + 4]).rstrip())
        return ExitCode.OK
    bars = (delimiter or "|") if parsable or parsable2 else None
    layout = by_sacct(
        columns or (_BRIEF if brief else _LONG if long_ else _DEFAULT), FIELDS, delimiter=bars, trailing=not parsable2
    )
    listed = split_ids(ids)
    window = window_of(
        starttime,
        endtime,
        parse_states([states]) if states else None,
        dt.datetime.now().astimezone(),
        by_id=bool(listed),
    )
    async with connection.client() as client:
        owners = None
        if not allusers and not (listed and not users):
            owners = await user_names(client, split_words([users or ""]), mine=not users)
        if listed:
            found, _ = await jobs_of_ids(client, listed)
            found = [job for job in found if owners is None or job.session.owner in owners]
        else:
            found = await list_jobs(client, show_ended=True, owners=owners)
    jobs = [job for job in found if window.has(job) and _accepted(job, accounts, names, groups, nodes)]
    named = [parsed for text in listed if (parsed := parse_id(text)) is not None]
    entries = [entry for entry in entries_of(jobs, steps=not allocations) if not named or is_named(entry, named)]
    if as_json:
        click.echo(json.dumps({"jobs": [as_document(job) for job in jobs]}, indent=1))
        return ExitCode.OK
    if not noheader:
        click.echo(layout.header())
        if bars is None:
            click.echo("".join(f"{'-' * column.width}{column.after}" for column in layout.columns))
    for entry in entries:
        click.echo(layout.line(entry))
    return ExitCode.OK


def _accepted(job: Job, accounts: str | None, names: str | None, groups: str | None, nodes: str | None) -> bool:
    spec = job.session.spec
    return (
        (not accounts or spec.project in split_words([accounts]))
        and (not names or job.name in split_words([names]))
        and (not groups or spec.resource_group in split_words([groups]))
        and (not nodes or not set(expand(nodes, "--nodelist")).isdisjoint(job.nodes))
    )
