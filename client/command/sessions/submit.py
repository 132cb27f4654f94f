"""`retinue submit`: runs a script as a batch session, or as an array of them."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.client.command.sessions.apply import print_refusals
from retinue.client.command.sessions.run import request, run_command
from retinue.client.command.sessions.script_options import (
    Array,
    ScriptOptions,
    parse_array,
    read_script,
)
from retinue.client.command.sessions.spec_options import option_of
from retinue.client.command.shell import options as option_values
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode, of_session
from retinue.client.command.shell.interrupts import said_when_cancelled
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.selecting import term
from retinue.client.command.shell.text_files import read_file
from retinue.client.command.slurm_scripts.hostlist import expand
from retinue.client.command.slurm_scripts.job_files import is_shown, job_files
from retinue.client.command.slurm_scripts.job_start import ARRAY_OFFSET, SCRIPT_VARIABLE, START
from retinue.client.command.slurm_scripts.job_variables import job_variables
from retinue.client.command.slurm_scripts.sbatch_grammar import BY_NAME, OptionValue, long_name, take
from retinue.client.command.slurm_scripts.sbatch_meaning import JOB_NAME_LABEL
from retinue.client.command.slurm_scripts.submitting_machine import Submission, exported
from retinue.client.errors import UsageError
from retinue.manager.v1 import session_pb2, session_service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from retinue.client.client import Client

# Of `retinue run`: what says what runs, and how it is followed.
_NOT_TAKEN = frozenset(
    {"kind", "command", "interactive", "tty", "keep", "detach", "dry_run", "fail_fast", "quiet", "output", "name"}
)
_META = "retinue.script"
_OUTPUT = ("-o", "--output")
_LONGEST_NAME = 63
_LONGEST_LABEL = 256
_MAX_AGENTS = 64


@dataclass(frozen=True, slots=True)
class Script:
    """The text of a script, where it is from, and what its lines and the command line ask for."""

    text: str
    source: str
    options: ScriptOptions

    @classmethod
    def of_command(cls, command: str) -> tuple[str, str]:
        """Returns the text and the source of a script that runs a command line."""
        return f"#!/bin/sh\n{command}\n", "--wrap"


class _Submit(click.Command):
    """Puts the options of the script before those of the command line, which count; those of sbatch there are read as
    in the script.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the script, and then all options."""
        args, typed = self._without_sbatch(list(args))
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        script = None
        if isinstance(command := found.get("wrap"), str):
            script = Script.of_command(command)
            if isinstance(found.get("script"), str):
                raise click.UsageError("--wrap takes the place of SCRIPT")
        elif isinstance(file := found.get("script"), str):
            source, text = read_file(file)
            script = text, source
        if script is not None:
            unknown = bool(found.get("ignore_unknown"))
            options = read_script(*script, typed=typed, own=own_options(), ignore_unknown=unknown)
            ctx.meta[_META] = Script(*script, options)
            args = [*options.arguments, *from_here(options.given), *args]
        return super().parse_args(ctx, args)

    def _without_sbatch(self, args: list[str]) -> tuple[list[str], list[OptionValue]]:
        """Returns the arguments, and the options of sbatch that stood among the options before SCRIPT."""
        own = {
            name: isinstance(item, click.Option) and not item.is_flag
            for item in self.params
            if isinstance(item, click.Option)
            for name in (*item.opts, *item.secondary_opts)
        }
        rest, kept, typed = args, list[str](), list[OptionValue]()
        while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
            name = rest[0].partition("=")[0] if rest[0].startswith("--") else rest[0][:2]
            if name not in own and (name[2:] if name.startswith("--") else long_name(name[1:])) in BY_NAME:
                typed.append(take(rest, {}))
                continue
            has_value = len(rest[0]) > len(name)
            if name in _OUTPUT and (value := rest[0][len(name) :].removeprefix("=") or "".join(rest[1:2])) != "name":
                typed.append(OptionValue("output", value))
                del rest[: 1 if has_value else 2]
                continue
            if name == "-p" and ":" not in (value := rest[0][2:] or "".join(rest[1:2])):
                raise click.UsageError(f"-p is a port here; for partition {value!r}: --partition={value}")
            kept.append(rest.pop(0))
            if own.get(name) and not has_value and rest:
                kept.append(rest.pop(0))
        return [*kept, *rest], typed


def own_options() -> dict[str, bool]:
    """Returns the long options of `retinue submit` that sbatch has not, with whether they have a value."""
    return {
        name[2:]: not item.is_flag
        for item in submit_command.params
        if isinstance(item, click.Option)
        for name in item.opts
        if name.startswith("--") and name[2:] not in BY_NAME
    }


def from_here(given: Mapping[str, str]) -> list[str]:
    """Returns the options of `retinue submit` for options of sbatch that name files and directories of this machine.
    Raises UsageError.
    """
    found = list[str]()
    if "chdir" in given:
        found += ["--workdir", os.path.abspath(given["chdir"])]
    if file := given.get("nodefile"):
        for name in expand(read_file(file)[1], "--nodefile"):
            found += ["--agent", name, "--strict-agents"]
    if file := given.get("export-file"):
        for variable in filter(None, read_file(file)[1].split("\0")):
            found += ["-e", variable]
    return found


def _name(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Returns the name; usage errors for a number, which to sbatch is one of tasks."""
    if value.isdecimal():
        raise click.BadParameter(
            f"is the name of the session here; for {value} tasks: --ntasks={value}", param=parameter
        )
    return value


@click.command("submit", cls=_Submit, context_settings={"allow_interspersed_args": False})
@click.option(
    "-n", "--name", default="", callback=_name, help="Name of the session.  [default: the job's name and some digits]"
)
@click.option(
    "--job-name", default="", help="Label slurm.job-name, with which the name begins.  [default: the script's]"
)
@click.option(
    "-a", "--array", metavar="INDICES", help="Submit a session for each index: 0-9, 1,3,7-11:2, or 0-99%5, 5 at a time."
)
@click.option(
    "--depends-on-each",
    multiple=True,
    callback=option_values.listed,
    metavar="ARRAY,…",
    help="With --array: start each session after the one of ARRAY with the same index succeeds.",
)
@click.option(
    "--request-id", default="", metavar="UUID", help="Key of the request: the same key again creates nothing."
)
@click.option("--wrap", metavar="COMMAND", help="Run COMMAND by /bin/sh instead of a script.")
@click.option(
    "--wait", is_flag=True, help="Wait for the end, and exit with the session's code; of an array, the highest."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the id, and problems.")
@click.option(
    "-o",
    "--output",
    metavar="FILE|name",
    help="Write output to FILE in the kernel, on a writable mount, with Slurm's patterns (%j); `name`: as -q.",
)
@click.option("--ignore-unknown", is_flag=True, help="Ignore options of sbatch that have no counterpart.")
@click.option("--dry-run", "--validate-only", is_flag=True, help="Check the request; create nothing.")
@click.argument("script", type=click.Path(), required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
@pass_connection
@asynchronous
async def submit_command(  # its options
    connection: Connection,
    context: click.Context,
    /,
    *,
    name: str,
    job_name: str,
    array: str | None,
    depends_on_each: tuple[str, ...],
    request_id: str,
    dry_run: bool,
    ignore_unknown: bool,
    wrap: str | None,
    wait: bool,
    quiet: bool,
    output: str | None,
    script: str | None,
    arguments: tuple[str, ...],
    **given: Any,
) -> int:
    """Run SCRIPT with its ARGUMENTS as a batch session; print its id, and its name on standard error.

    Lines `#RETINUE OPTIONS` before the first command of the script are options of this command and of `retinue run`;
    the command line overrides them. Lines `#SBATCH OPTIONS`, and options of sbatch on the command line, are read where
    they mean the same; all others are refused together. The script has $SLURM_JOB_ID, $SLURM_NTASKS and other variables
    of Slurm, and srun. Each session of an array has its index in $ARRAY_INDEX and $SLURM_ARRAY_TASK_ID, and the label
    `array`; either all sessions are created or none. The name of an array stands for all of its sessions in
    --depends-on and --after.

    \b
      #!/bin/bash
      #RETINUE --slots cpu=4,mem=8g --time-limit 2h
      #RETINUE --array 0-9%2
      python3 train.py --seed "$ARRAY_INDEX"
    """
    del wrap
    quiet = quiet or output is not None
    if _META not in context.meta:
        raise click.UsageError("name a SCRIPT, or give --wrap COMMAND")
    found = context.meta[_META]
    assert isinstance(found, Script)  # noqa: S101  # put there by parse_args
    for ignored in () if quiet else found.options.ignored:
        click.echo(f"retinue: {safe(str(ignored))}", err=True)
    environment = exported(os.environ, image=bool(given["image"])) if found.options.given.get("export") == "ALL" else {}
    job = job_of(
        found,
        given | {"env": environment | given["env"]},
        file="wrap" if script is None else "job" if script == "-" else Path(script).name,
        arguments=arguments,
        name=name,
        job_name=job_name,
        array=array,
        parents=depends_on_each,
        request_id=request_id,
        ignore_unknown=ignore_unknown,
    )
    for text in () if quiet else job.left_out:
        click.echo(f"retinue: {safe(text)}", err=True)
    async with connection.client() as client:
        accepted = await create(client, job, validate_only=dry_run)
        if accepted is None:
            return ExitCode.FAILURE
        for one in accepted:
            click.echo(one.id or one.name)
        if not quiet:
            done = "checked" if dry_run else "submitted"
            name = job.spec.name
            many = f"array {name}: {len(accepted)} sessions; retinue ls -l array={name}"
            click.echo(f"{done} {name if job.array is None else many}", err=True)
        if dry_run or not wait:
            return ExitCode.OK
        return await wait_for(client, accepted)


def _for_scripts(parameter: click.Parameter) -> click.Parameter:
    """Returns an option of `retinue run` without a letter that is another option of sbatch."""
    taken = copy.copy(parameter)
    taken.opts = [name for name in parameter.opts if name != "-w"]
    return taken


submit_command.params[:0] = [_for_scripts(option) for option in run_command.params if option.name not in _NOT_TAKEN]


@dataclass(frozen=True, slots=True)
class Job:
    """The session of a script, of which an array has one for each index; `parents` are arrays, each of whose sessions
    comes before the one with its index. `left_out` says what of its files is not as asked for.
    """

    spec: session_pb2.SessionSpec
    source: str
    array: Array | None
    parents: Sequence[str]
    request_id: str
    # Agents that it is not to run on.
    excluded: Sequence[str] = ()
    left_out: Sequence[str] = ()


def job_of(
    script: Script,
    given: Mapping[str, Any],
    *,
    file: str,
    arguments: Sequence[str],
    name: str = "",
    job_name: str = "",
    array: str | None = None,
    parents: Sequence[str] = (),
    request_id: str = "",
    ignore_unknown: bool = False,
    as_slurm: bool = False,
) -> Job:
    """Returns what a script with its options asks for. `file` is what the script is called. With `as_slurm`
    it has its output in a file of the directory in which it begins, if that is on a mount. Raises UsageError.
    """
    made = request_id or str(uuid.uuid4())
    job_name = job_name or file
    command = ["/bin/sh", "-c", START, file, *arguments]
    name = name or f"{_stem(job_name)[: _LONGEST_NAME - 11]}-{_digits(made)}"
    asked = parse_array(array) if array is not None else script.options.array
    submission, mounts, files = Submission.here(), given["mount"], dict(script.options.given)
    directory = given["workdir"]
    if as_slurm and is_shown(directory, mounts, writable=True):
        files.setdefault("output", "slurm-%j.out" if asked is None else "slurm-%A_%a.out")
    left_out: list[str] = []
    own = job_files(files, directory, mounts, left_out=left_out if ignore_unknown else None)
    spec = request({**given, "kind": "batch", "name": name, "command": command})
    spec.labels.setdefault(JOB_NAME_LABEL, job_name[:_LONGEST_LABEL])
    main = _main(spec)
    main.environment[SCRIPT_VARIABLE] = script.text
    tasks, shape = script.options.tasks, script.options.shape
    own |= job_variables(
        spec, main, job_name=job_name, submission=submission, tasks=tasks, shape=shape, given=script.options.given
    )
    for variable, value in own.items():
        if variable not in main.environment and variable not in spec.kernel.environment:
            main.environment[variable] = value
    if parents and asked is None:
        raise click.UsageError("--depends-on-each needs --array; --depends-on waits for all sessions of an array")
    excluded = expand(script.options.given.get("exclude", ""), "--exclude")
    return Job(spec, script.source, asked, parents, made, excluded, left_out)


async def create(
    client: Client, job: Job, *, validate_only: bool
) -> Sequence[session_service_pb2.AcceptedSession] | None:
    """Creates the sessions of a job, all or none; None when they were refused, which is printed."""
    spec = job.spec
    if job.excluded:
        await _choose_others(client, spec, frozenset(job.excluded))
    if job.array is None:
        specs: Iterable[session_pb2.SessionSpec] = [spec]
        answer = await client.sessions.create_many(
            specs, request_id=job.request_id, validate_only=validate_only, all_or_nothing=True
        )
    else:
        array = _array(spec, job.array, job.parents)
        specs = (_element(spec, index) for index in job.array.indices)
        answer = await client.sessions.create_array(array, request_id=job.request_id, validate_only=validate_only)
    if print_refusals(((one, job.source) for one in specs), answer, option_of):
        return None
    return [result.accepted for result in answer.results]


async def _choose_others(client: Client, spec: session_pb2.SessionSpec, excluded: frozenset[str]) -> None:
    """Chooses the other agents of the group, or of those that were chosen. Raises UsageError."""
    group = term("resource_group", spec.resource_group or "default")
    there = [agent.id async for agent in client.agents.list(filter=group)]
    others = [name for name in spec.agents or there if name not in excluded]
    if not others:
        raise UsageError("--exclude: no other agent is left")
    if len(others) > _MAX_AGENTS:
        raise UsageError(f"--exclude: {len(others)} other agents are left, more than {_MAX_AGENTS}: use --nodelist")
    if not excluded.isdisjoint(there) or spec.agents:
        spec.agents[:] = others
        spec.agent_choice = session_pb2.AGENT_CHOICE_STRICT


async def wait_for(client: Client, accepted: Iterable[session_service_pb2.AcceptedSession]) -> int:
    """Waits until sessions have ended; returns the highest of their exit codes."""
    async with said_when_cancelled("what was submitted goes on; `retinue rm` ends it"):
        return max(await asyncio.gather(*(_wait(client, one.id) for one in accepted)))


async def _wait(client: Client, identity: str) -> int:
    session = await client.sessions.get(identity)
    await session.wait_ended()
    return of_session(session.view)


def _step(indices: Sequence[int]) -> int:
    """Returns the step of a range of indices; 1 where there is no one."""
    steps = {after - before for before, after in itertools.pairwise(indices)}
    return steps.pop() if len(steps) == 1 else 1


def _stem(script: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", re.sub(r"\.\w{1,4}$", "", script.lower())).strip("-") or "job"


def _digits(request_id: str) -> str:
    """Returns some digits that are the same for the same request."""
    try:
        return uuid.UUID(request_id).hex[:4]
    except ValueError as error:
        raise UsageError("--request-id must be a UUID") from error


def _main(spec: session_pb2.SessionSpec) -> session_pb2.KernelSpec:
    """Returns what is main1's own."""
    found = next((role for role in spec.roles if role.role == "main"), None)
    return (found or spec.roles.add(role="main")).kernel


def _element(spec: session_pb2.SessionSpec, index: int) -> session_pb2.SessionSpec:
    """Returns a session of an array as far as what it asks for is shown."""
    one = session_pb2.SessionSpec()
    one.CopyFrom(spec)
    one.name = f"{spec.name}-{index}"
    return one


def _array(
    spec: session_pb2.SessionSpec, array: Array, parents: Sequence[str] = ()
) -> session_service_pb2.SessionArray:
    """Returns the sessions of an array, each after the one of the arrays `parents` with its index."""
    variables = _main(spec).environment
    variables["SLURM_ARRAY_TASK_COUNT"] = str(len(array.indices))
    variables["SLURM_ARRAY_TASK_MIN"] = str(min(array.indices))
    variables["SLURM_ARRAY_TASK_MAX"] = str(max(array.indices))
    variables["SLURM_ARRAY_TASK_STEP"] = str(_step(array.indices))
    return session_service_pb2.SessionArray(
        spec=spec,
        indices=array.indices,
        at_a_time=array.at_a_time or 0,
        depends_on_each=parents,
        index_variables=("ARRAY_INDEX", "SLURM_ARRAY_TASK_ID"),
        offset_variables=(ARRAY_OFFSET,),
    )
