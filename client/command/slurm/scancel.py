"""`retinue scancel`: ends sessions, or sends them a signal, as Slurm's scancel does."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, TypeAlias

import click

from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.selecting import end_sessions
from retinue.client.command.slurm.finding import (
    BATCH,
    jobs_of_ids,
    list_jobs,
    parse_id,
    split_ids,
    split_words,
    user_names,
)
from retinue.client.command.slurm.slurm_command import LEFT_OUT, SlurmCommand, lines_of, version_option
from retinue.client.command.slurm.squeue import parse_states
from retinue.client.command.slurm_scripts.hostlist import expand
from retinue.client.command.slurm_scripts.sbatch_meaning import signal_name
from retinue.client.errors import CallError, RetinueError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.client.client import Client
    from retinue.client.command.slurm.job import Job

_Failed: TypeAlias = "list[tuple[Job, list[str]]]"
_SIGNALS_AT_A_TIME = 8
# $1 is a signal, $2 whom it is for. The command is the first child of the kernel's first process, as what is orphaned
# comes later; what runs this is no child of it.
_SEND = """\
list=
for file in /proc/[0-9]*/stat; do
  { read -r line <"$file"; } 2>/dev/null || continue
  pid=${line%% *} rest=${line##*) } rest=${rest#* }
  list="$list $pid:${rest%% *}"
done
main=
for pair in $list; do
  case $pair in *:1) [ -n "$main" ] && [ "${pair%:*}" -gt "$main" ] || main=${pair%:*};; esac
done
[ -n "$main" ] || { echo "no process of the job was found" >&2; exit 1; }
below= next=$main
while [ -n "$next" ]; do
  now=$next next=
  for parent in $now; do
    for pair in $list; do case $pair in *:$parent) next="$next ${pair%:*}";; esac; done
  done
  below="$below $next"
done
case $2 in
  script) kill -s "$1" "$main";;
  all) kill -s "$1" $main $below;;
  *) [ -n "${below# }" ] || below=$main; kill -s "$1" $below;;
esac
"""


@click.command("scancel", cls=SlurmCommand)
@click.option("-A", "--account", "projects", envvar="SCANCEL_ACCOUNT", metavar="PROJECT,…", help="Only these projects.")
@click.option("-b", "--batch", is_flag=True, help="The signal goes to the script alone.")
@click.option("--ctld", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-f", "--full", is_flag=True, help="The signal goes to the script and to what it has started.")
@click.option("-H", "--hurry", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-i", "--interactive", is_flag=True, help="Ask before each.")
@click.option("-M", "--clusters", expose_value=False, metavar="NAME", help="There is one cluster.")
@click.option("--me", is_flag=True, help="Only the caller's.")
@click.option("-n", "--name", "--jobname", "names", envvar="SCANCEL_NAME", metavar="NAME,…", help="Only these names.")
@click.option("-p", "--partition", "groups", envvar="SCANCEL_PARTITION", metavar="GROUP,…", help="Only these groups.")
@click.option("-q", "--qos", expose_value=False, metavar="NAME", help=LEFT_OUT)
@click.option("-Q", "--quiet", is_flag=True, help="Do not report ended jobs.")
@click.option("-s", "--signal", "signal", metavar="NAME", help="Send this signal instead of ending jobs.")
@click.option("-t", "--state", "states", envvar="SCANCEL_STATE", metavar="PD|R", help="Only these states.")
@click.option("-u", "--user", "users", envvar="SCANCEL_USER", metavar="USER,…", help="$USER is you.")
@click.option("-v", "--verbose", is_flag=True, help="Report each step.")
@click.option("-w", "--nodelist", "nodes", metavar="AGENT,…", help="Only these agents.")
@click.option("--wckey", expose_value=False, metavar="NAME", help=LEFT_OUT)
@version_option
@click.argument("ids", nargs=-1, metavar="[ID]...")
@pass_connection
@asynchronous
async def scancel_command(
    connection: Connection,
    *,
    projects: str | None,
    batch: bool,
    full: bool,
    interactive: bool,
    me: bool,
    names: str | None,
    groups: str | None,
    quiet: bool,
    signal: str | None,
    states: str | None,
    users: str | None,
    verbose: bool,
    nodes: str | None,
    ids: tuple[str, ...],
) -> int:
    """End sessions by their numbers, or those that the options name, as Slurm's scancel ends jobs.

    `12` is a session or a whole array; `12_3` and `12_[1-3]` are sessions of an array. Ended sessions are left alone.
    """
    listed = split_ids(ids)
    chosen = any((projects, me, names, groups, states, users, nodes))
    if not listed and not chosen:
        raise click.UsageError("No job identification provided")
    for text in listed:
        if (parsed := parse_id(text)) is None:
            raise UsageError(f"Invalid job id {text}")
        if parsed.step not in ("", BATCH):
            raise UsageError(f"{text}: a step of srun ends with it: `kill` its srun in the job, or cancel the job")
    wanted = None if states is None else parse_states([states])
    async with connection.client() as client:
        jobs, missing = await _jobs(client, listed, users, me=me)
        jobs = [
            job
            for job in jobs
            if _matches(job, split_words([projects or ""]), split_words([names or ""]), split_words([groups or ""]))
            and (wanted is None or job.state in wanted)
            and (not nodes or not set(expand(nodes, "--nodelist")).isdisjoint(job.nodes))
        ]
        for text in missing:
            click.echo(f"scancel: error: Kill job error on job id {text}: Invalid job id specified", err=True)
        if interactive:
            jobs = [job for job in jobs if _confirmed(job)]
        name = None if signal is None else signal_name(signal, f"--signal={signal}")
        if verbose and not quiet:
            for job in jobs:
                click.echo(f"scancel: {'Terminating' if name is None else f'Signal {name} to'} job {job.id}", err=True)
        if name in (None, "KILL"):
            failed = await _end([job for job in jobs if not job.state.is_ended], client, force=name == "KILL")
        else:
            failed = await _signal(jobs, client, name, "script" if batch else "all" if full else "started")
    for job, lines in failed:
        for line in lines:
            click.echo(f"scancel: error: Kill job error on job id {job.id}: {safe(line)}", err=True)
    return ExitCode.OK if not failed and not missing else ExitCode.FAILURE


async def _jobs(client: Client, ids: Sequence[str], users: str | None, *, me: bool) -> tuple[list[Job], list[str]]:
    """Returns the jobs of ids, else those of users, by default the caller's, that have not ended."""
    owners = await user_names(client, split_words([users or ""]), mine=me or (not ids and not users))
    if ids:
        found, missing = await jobs_of_ids(client, ids)
        return [job for job in found if not (users or me) or job.session.owner in owners], missing
    return await list_jobs(client, show_ended=False, owners=owners), []


def _matches(job: Job, projects: Sequence[str], names: Sequence[str], groups: Sequence[str]) -> bool:
    spec = job.session.spec
    return (
        (not projects or spec.project in projects)
        and (not names or job.name in names)
        and (not groups or spec.resource_group in groups)
    )


def _confirmed(job: Job) -> bool:
    text = f"Cancel job_id={job.id} name={job.name} partition={job.session.spec.resource_group} [y/n]? "
    click.echo(safe(text), nl=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _end(jobs: Sequence[Job], client: Client, *, force: bool) -> _Failed:
    """Ends jobs; returns those that were refused, and why."""
    answers = await end_sessions(client, [job.session.id for job in jobs], force=force)
    return [(job, lines_of(found)) for job, found in zip(jobs, answers, strict=True) if isinstance(found, CallError)]


async def _signal(jobs: Sequence[Job], client: Client, signal: str, whom: str) -> _Failed:
    """Sends a signal to jobs; returns those that did not get it, and why."""
    some = asyncio.Semaphore(_SIGNALS_AT_A_TIME)

    async def one(job: Job) -> list[str]:
        if job.state.is_ended:
            return ["Job/step already completing or completed"]
        try:
            async with some:
                await _send(client, job, signal, whom)
        except RetinueError as error:
            return lines_of(error)
        return []

    said = await asyncio.gather(*map(one, jobs))
    return [(job, lines) for job, lines in zip(jobs, said, strict=True) if lines]


async def _send(client: Client, job: Job, signal: str, whom: str) -> None:
    """Sends a signal to the script of a job, to what it has started, or to both. Raises RetinueError."""
    errors = b""
    async with client.sessions.attach(job.session.id, ["/bin/sh", "-c", _SEND, "scancel", signal, whom]) as command:
        async for piece in command:
            errors += piece.data
    if command.exit_code:
        raise UsageError(errors.decode(errors="replace").strip() or f"the signal {signal} was not sent")
