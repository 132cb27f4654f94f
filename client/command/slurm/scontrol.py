"""`retinue scontrol`: shows and changes sessions, agents and resource groups, as Slurm's scontrol does."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.slurm.finding import find, jobs_of_ids, list_jobs, parse_id, split_ids, split_words
from retinue.client.command.slurm.job import Job
from retinue.client.command.slurm.node import Node, Partition, partitions_of
from retinue.client.command.slurm.scontrol_texts import config_text, is_shown, job_text, node_text, partition_text
from retinue.client.command.slurm.slurm_command import LEFT_OUT, NO_SUCH_JOB, SlurmCommand, fail, version_option
from retinue.client.command.slurm_scripts.hostlist import compress, expand
from retinue.client.command.slurm_scripts.job_start import SCRIPT_VARIABLE
from retinue.client.errors import NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from retinue.client.client import Client

_INVALID_JOB = "Invalid job id specified"
_HIGHEST_PRIORITY, _DEFAULT_PRIORITY, _NICE_STEP = 100, 10, 100


@click.command("scontrol", cls=SlurmCommand)
@click.option("-a", "--all", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-d", "--details", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-M", "--clusters", expose_value=False, metavar="NAME", help="There is one cluster.")
@click.option("-o", "--oneliner", is_flag=True, help="A line for each.")
@click.option("-Q", "--quiet", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help=LEFT_OUT)
@version_option
@click.argument("words", nargs=-1, metavar="COMMAND [ARGUMENTS]...")
@pass_connection
@asynchronous
async def scontrol_command(connection: Connection, *, oneliner: bool, words: tuple[str, ...]) -> int:
    """Show and change sessions, agents and resource groups as Slurm's scontrol does jobs, nodes and partitions.

    \b
      scontrol show job [ID]             scontrol hold ID,…
      scontrol show node [AGENT]         scontrol release ID,…
      scontrol show partition [GROUP]    scontrol requeue ID,…
      scontrol show hostnames [LIST]     scontrol requeuehold ID,…
      scontrol show config               scontrol wait_job ID
      scontrol ping                      scontrol write batch_script ID [FILE|-]
      scontrol update JobId=ID Priority=50
      scontrol update NodeName=AGENT State=DRAIN|RESUME
    """
    if not words:
        raise click.UsageError("name a command: scontrol --help lists them")
    name, *rest = words
    found = [command for command in _COMMANDS if command.startswith(name.lower())]
    if name.lower() in _COMMANDS:
        found = [name.lower()]
    if len(found) != 1:
        raise UsageError(f"invalid keyword: {name}: it is none of {', '.join(_COMMANDS)}")
    if found[0] == "show" and rest and (shown := _kind(rest[0])) in ("hostnames", "hostlist"):
        # They ask no manager.
        _show_hosts(shown, rest[1:])
        return ExitCode.OK
    async with connection.client() as client:
        if found[0] in ("show", "ping"):
            return await _show(client, connection, [*(["ping"] if found[0] == "ping" else []), *rest], oneliner)
        await _COMMANDS[found[0]](client, rest)
    return ExitCode.OK


_KINDS = ("jobs", "nodes", "partitions", "hostnames", "hostlist", "hostlistsorted", "config", "version", "ping")


def _kind(word: str) -> str:
    """Returns what is to be shown, of which the name may be cut. Raises UsageError."""
    lower = word.lower()
    found = [kind for kind in _KINDS if kind == lower] or [kind for kind in _KINDS if kind.startswith(lower)]
    if not found or (len(found) > 1 and not lower.startswith("host")):
        raise UsageError(f"invalid entity: {word} for keyword: show")
    return "hostlist" if found[0] == "hostlistsorted" else found[0]


def _show_hosts(kind: str, rest: Sequence[str]) -> None:
    given = rest[0] if rest else os.environ.get("SLURM_JOB_NODELIST", "")
    if not given:
        raise UsageError("a list of hosts is missing, and SLURM_JOB_NODELIST is not set")
    names = expand(given, "hosts")
    for line in names if kind == "hostnames" else [compress(names)]:
        click.echo(safe(line))


async def _show(client: Client, connection: Connection, words: Sequence[str], one_line: bool) -> int:
    if not words:
        raise UsageError("too few arguments for keyword: show")
    kind, names = _kind(words[0]), split_ids(words[1:])
    if kind == "config":
        click.echo(config_text(connection.settings().endpoint))
    elif kind == "version":
        click.echo("slurm 22.05.8")
    elif kind == "ping":
        await client.users.caller()
        click.echo(f"Slurmctld(primary) at {safe(connection.settings().endpoint)} is UP")
    elif kind == "jobs":
        await _show_jobs(client, [name.partition("=")[2] or name for name in names], one_line)
    elif kind == "nodes":
        await _show_nodes(client, ",".join(names), one_line)
    else:
        await _show_partitions(client, split_words(names), one_line)
    return ExitCode.OK


async def _show_jobs(client: Client, ids: Sequence[str], one_line: bool) -> None:
    if ids:
        jobs, missing = await jobs_of_ids(client, ids)
        if missing:
            fail("", [NO_SUCH_JOB])
    else:
        jobs = [job for job in await list_jobs(client, show_ended=False, owners=None) if is_shown(job)]
    if not jobs:
        click.echo("No jobs in the system")
    for job in jobs:
        click.echo(safe_lines(job_text(job, await _variables(client, job) if ids else {}, one_line=one_line)))


async def _variables(client: Client, job: Job) -> Mapping[str, str]:
    """Returns the variables of a job's main1; values of others' jobs are empty."""
    view = (await client.sessions.get(job.session.id)).view
    found = dict(view.spec.kernel.environment)
    for role in view.spec.roles:
        if role.role == "main":
            found.update(role.kernel.environment)
    return {name: value for name, value in found.items() if value}


async def _show_nodes(client: Client, names: str, one_line: bool) -> None:
    nodes = [Node(agent) async for agent in client.agents.list()]
    if names:
        wanted = expand(names, "nodes")
        by_name = {node.name: node for node in nodes}
        for name in wanted:
            if name not in by_name:
                click.echo(f"Node {safe(name)} not found")
                raise click.exceptions.Exit(1)
        nodes = [by_name[name] for name in wanted]
    for node in nodes:
        click.echo(safe_lines(node_text(node, one_line=one_line)))


async def _show_partitions(client: Client, names: Sequence[str], one_line: bool) -> None:
    groups = [group async for group in client.resource_groups.list()]
    partitions: list[Partition] = partitions_of(groups, [agent async for agent in client.agents.list()])
    for name in names:
        if name not in {partition.name for partition in partitions}:
            click.echo(f"Partition {safe(name)} not found")
            raise click.exceptions.Exit(1)
    for partition in partitions:
        if not names or partition.name in names:
            click.echo(safe_lines(partition_text(partition, one_line=one_line)))


def safe_lines(text: str) -> str:
    """Returns a text of several lines without what a terminal would obey."""
    return "\n".join(safe(line) for line in text.split("\n"))


async def _each(client: Client, words: Sequence[str], change: Callable[[Job], Awaitable[object]]) -> None:
    """Changes each job of some ids. Raises UsageError for those that there are not."""
    ids = split_ids(word.partition("=")[2] or word for word in words)
    if not ids:
        raise UsageError("too few arguments: name jobs by their numbers")
    jobs, missing = await jobs_of_ids(client, ids)
    if missing:
        raise UsageError(f"{_INVALID_JOB} for job {', '.join(missing)}")
    await asyncio.gather(*(change(job) for job in jobs if not job.state.is_ended or len(ids) == len(jobs)))


async def _hold(client: Client, words: Sequence[str]) -> None:
    await _each(client, words, lambda job: client.sessions.update(job.session.id, hold=True))


async def _release(client: Client, words: Sequence[str]) -> None:
    await _each(client, words, lambda job: client.sessions.update(job.session.id, hold=False))


async def _requeue(client: Client, words: Sequence[str]) -> None:
    await _each(client, words, lambda job: client.sessions.restart(job.session.id))


async def _requeue_hold(client: Client, words: Sequence[str]) -> None:
    async def change(job: Job) -> None:
        await client.sessions.restart(job.session.id)
        session = await client.sessions.get(job.session.id)
        await session.wait("PENDING")
        await client.sessions.update(job.session.id, hold=True)

    await _each(client, words, change)


async def _wait_job(client: Client, words: Sequence[str]) -> None:
    async def wait(job: Job) -> None:
        session = await client.sessions.get(job.session.id)
        await session.wait("RUNNING", "TERMINATED", "CANCELLED")

    await _each(client, words, wait)


async def _write(client: Client, words: Sequence[str]) -> None:
    kind, *rest = words or [""]
    if not "batch_script".startswith(kind.lower()) or not kind or not rest:
        raise UsageError("write batch_script ID [FILE|-] is all that can be written")
    wanted = parse_id(rest[0])
    sessions = [] if wanted is None else await find(client, wanted)
    if not sessions:
        raise UsageError(_INVALID_JOB)
    script = (await _variables(client, Job(sessions[0], time.time()))).get(SCRIPT_VARIABLE, "")
    if not script:
        raise UsageError(f"job {rest[0]} has no script, or is another user's")
    if rest[1:2] == ["-"]:
        click.echo(script, nl=False)
        return
    path = Path(rest[1] if rest[1:] else f"slurm-{rest[0]}.sh")
    try:
        await asyncio.to_thread(path.write_text, script)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    click.echo(f'batch script for job {rest[0]} written to "{safe(str(path))}"')


async def _update(client: Client, words: Sequence[str]) -> None:
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"invalid input: {word}: write KEY=VALUE")
        given[key.lower().removesuffix("+").removesuffix("-")] = value
    if (jobs := given.pop("jobid", given.pop("job", None))) is not None:
        await _update_jobs(client, jobs, given)
    elif (nodes := given.pop("nodename", given.pop("node", None))) is not None:
        await _update_nodes(client, nodes, given)
    else:
        raise UsageError("update is for JobId= and NodeName=; retinue groups update changes resource groups")


_LONG_KEYS = {"name": "jobname", "depend": "dependency"}
# What does instead, by what is to change. Slurm's job name is a label, by which others wait for it.
_INSTEAD: Mapping[str, str] = {
    "timelimit": " (scancel it, and sbatch --time)",
    "jobname": " (retinue rename gives its session another name)",
    "dependency": " (scancel it, and sbatch --dependency; scontrol hold keeps it from starting)",
    "starttime": " (scontrol hold and release; or scancel it, and sbatch --begin)",
}


async def _update_jobs(client: Client, jobs: str, given: dict[str, str]) -> None:
    priority = _priority(given)
    if given:
        fixed = [f"{key}{_INSTEAD.get(_LONG_KEYS.get(key, key), '')}" for key in sorted(given)]
        raise UsageError(f"{', '.join(fixed)} cannot change once a job is submitted")
    if priority is None:
        raise UsageError("no changes specified")
    await _each(
        client,
        [jobs],
        lambda job: client.sessions.update(
            job.session.id,
            priority=priority or None,
            hold=priority == 0,
        ),
    )


def _priority(given: dict[str, str]) -> int | None:
    """Takes the priority off what is to change; as in Slurm, 0 holds a job. Raises UsageError."""
    text = given.pop("priority", None)
    nice = given.pop("nice", None)
    if text is None and nice is not None and nice.isdecimal():
        return max(1, _DEFAULT_PRIORITY - -(-int(nice) // _NICE_STEP))
    if text is None:
        return None
    if not text.isdecimal() or int(text) > _HIGHEST_PRIORITY:
        raise UsageError(f"Priority={text}: priorities are 1 to {_HIGHEST_PRIORITY}, and 0 holds a job")
    return int(text)


async def _update_nodes(client: Client, names: str, given: dict[str, str]) -> None:
    state = given.pop("state", "").upper()
    given.pop("reason", None)
    if given or state not in ("DRAIN", "RESUME", "UNDRAIN", "IDLE"):
        raise UsageError("of a node State=DRAIN and State=RESUME can be set; retinue agents has more")
    for name in expand(names, "NodeName"):
        try:
            await (client.agents.drain(name) if state == "DRAIN" else client.agents.undrain(name))
        except NotFound:
            raise UsageError(f"Invalid node name specified: {name}") from None


async def _show_nothing(_client: Client, _words: Sequence[str]) -> None:
    """Stands for the words that are answered before."""


_COMMANDS: Mapping[str, Callable[[Client, Sequence[str]], Awaitable[None]]] = {
    "show": _show_nothing,
    "ping": _show_nothing,
    "hold": _hold,
    "uhold": _hold,
    "release": _release,
    "requeue": _requeue,
    "requeuehold": _requeue_hold,
    "update": _update,
    "wait_job": _wait_job,
    "write": _write,
}
