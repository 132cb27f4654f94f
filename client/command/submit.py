"""`retinue submit`: runs a script as a batch session, or as an array of them."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.client.command.apply import print_refusals, read_file
from retinue.client.command.connection import Connection, asynchronous, pass_connection
from retinue.client.command.exit_codes import ExitCode
from retinue.client.command.printable import safe
from retinue.client.command.run import request, run_command
from retinue.client.command.script_options import Array, ScriptOptions, parse_array, read_script
from retinue.client.command.spec_options import option_of
from retinue.client.errors import UsageError
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCRIPT = "JOB_SCRIPT"
# The script travels in the environment: arguments are shown to all who see the session.
_RUN = f"""\
f=$(mktemp "${{TMPDIR:-/tmp}}/job.XXXXXX" 2>/dev/null || mktemp "${{HOME:-.}}/job.XXXXXX") &&
printf '%s' "${_SCRIPT}" >"$f" && chmod 700 "$f" || {{ echo "retinue: there is no space for the script" >&2; exit 126; }}
unset {_SCRIPT}
exec "$f" "$@"
"""
# Of `retinue run`: what says what runs, and how it is followed.
_NOT_TAKEN = frozenset(
    {"kind", "command", "interactive", "tty", "keep", "detach", "dry_run", "fail_fast", "quiet", "output", "name"}
)
_META = "retinue.script"
_LONGEST_NAME = 63


class _Submit(click.Command):
    """Puts the options of the script before those of the command line, which count."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the script, and then all options."""
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        if isinstance(file := found.get("script"), str):
            source, text = read_file(file)
            options = read_script(text, source)
            ctx.meta[_META] = text, source, options
            args = [*options.arguments, *args]
        return super().parse_args(ctx, args)


@click.command("submit", cls=_Submit, context_settings={"allow_interspersed_args": False})
@click.option("-n", "--name", default="", help="Exactly this name.  [default: the job's name and some digits]")
@click.option("--job-name", default="", help="How the name begins.  [default: as the script is called]")
@click.option("-a", "--array", metavar="INDICES", help="A session for each: 0-9, 1,3,7-11:2, or 0-99%5, 5 at a time.")
@click.option("--request-id", default="", metavar="UUID", help="The same one again makes nothing twice.")
@click.option("--dry-run", is_flag=True, help="Only check: nothing is made.")
@click.argument("script", type=click.Path())
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
    request_id: str,
    dry_run: bool,
    script: str,
    arguments: tuple[str, ...],
    **given: Any,
) -> int:
    """Run SCRIPT with its ARGUMENTS as a batch session; print its id.

    Lines `#RETINUE OPTIONS` before the first command of the script are options of this command, and those of
    `retinue run`; options given here count before them. Lines `#SBATCH OPTIONS` are read as far as they mean the same;
    what would mean something else is refused. Of an array, each session has its number in $ARRAY_INDEX and
    $SLURM_ARRAY_TASK_ID, and the label `array`; all of them are made, or none.

    \b
      #!/bin/bash
      #RETINUE --slots cpu=4,mem=8g --time-limit 2h
      #RETINUE --array 0-9%2
      python3 train.py --seed "$ARRAY_INDEX"
    """
    text, source, options = context.meta[_META]
    assert isinstance(options, ScriptOptions)  # noqa: S101  # put there by parse_args
    for number, option, why in options.ignored:
        click.echo(f"retinue: {safe(source)}:{number}: --{option} is left out: {why}", err=True)
    asked = parse_array(array) if array is not None else options.array
    made = request_id or str(uuid.uuid4())
    name = name or f"{(job_name or _stem(script))[: _LONGEST_NAME - 11]}-{_digits(made)}"
    spec = request({**given, "kind": "batch", "name": name, "command": ["/bin/sh", "-c", _RUN, "job", *arguments]})
    _main(spec).environment[_SCRIPT] = text
    specs = [spec] if asked is None else _elements(spec, asked)
    async with connection.client() as client:
        answer = await client.sessions.create_many(specs, request_id=made, validate_only=dry_run, all_or_nothing=True)
    if print_refusals([(one, source) for one in specs], answer, option_of):
        return ExitCode.FAILURE
    for result in answer.results:
        click.echo(result.accepted.id or result.accepted.name)
    if asked is not None:
        click.echo(f"array {name}: {len(specs)} sessions; retinue ls -l array={name}", err=True)
    return ExitCode.OK


submit_command.params[:0] = [parameter for parameter in run_command.params if parameter.name not in _NOT_TAKEN]


def _stem(script: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", Path(script).stem.lower()).strip("-") or "job"


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


def _elements(spec: session_pb2.SessionSpec, array: Array) -> Sequence[session_pb2.SessionSpec]:
    """Returns the sessions of an array. So many run at a time as there are chains of sessions of which each runs
    after the one before.
    """
    name, made = spec.name, list[session_pb2.SessionSpec]()
    for position, index in enumerate(array.indices):
        one = session_pb2.SessionSpec()
        one.CopyFrom(spec)
        one.name = f"{name}-{index}"
        one.labels["array"] = name
        variables = _main(one).environment
        variables["ARRAY_INDEX"] = variables["SLURM_ARRAY_TASK_ID"] = str(index)
        variables["SLURM_ARRAY_JOB_ID"] = name
        variables["SLURM_ARRAY_TASK_COUNT"] = str(len(array.indices))
        variables["SLURM_ARRAY_TASK_MIN"] = str(min(array.indices))
        variables["SLURM_ARRAY_TASK_MAX"] = str(max(array.indices))
        if array.at_a_time is not None and position >= array.at_a_time:
            one.runs_after.append(made[position - array.at_a_time].name)
        made.append(one)
    return made
