"""`retinue submit`: runs a script as a batch session, or as an array of them."""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.client.command.apply import print_refusals
from retinue.client.command.connection import Connection, asynchronous, pass_connection
from retinue.client.command.exit_codes import ExitCode, of_session
from retinue.client.command.interrupts import said_when_cancelled
from retinue.client.command.printable import safe
from retinue.client.command.run import request, run_command
from retinue.client.command.script_options import (
    SCRIPT_VARIABLE,
    Array,
    ScriptOptions,
    calls,
    long_name,
    of_sbatch,
    parse_array,
    read_script,
    take_option,
)
from retinue.client.command.selecting import selected, term
from retinue.client.command.spec_options import option_of
from retinue.client.command.text_files import read_file
from retinue.client.errors import NotFound, UsageError
from retinue.manager.v1 import session_pb2
from retinue.rpc.core.amounts import AmountError, parse_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.client.client import Client

# What srun is where a session has one task: the command itself.
_SRUN = """\
#!/bin/sh
# A task is a kernel of the session. Of one task, this runs COMMAND here; it starts none in other kernels.
refuse() { echo "srun: $1; in a Retinue session it runs one command in main1: for others use ssh \\$host" >&2; exit 1; }
tasks=${SLURM_NTASKS:-1}
while [ $# -gt 0 ]; do
  case $1 in
    -n|--ntasks) tasks=$2; shift 2;;
    -n*) tasks=${1#-n}; shift;;
    --ntasks=*) tasks=${1#*=}; shift;;
    -N|-c|-t|-p|-J|-A|-G|--nodes|--cpus-per-task|--time|--mem|--mem-per-cpu|--gpus|--gres|--cpu-bind|--mpi|--export|\
    --partition|--job-name|--account|--distribution|--gpus-per-task|--hint) shift 2;;
    --nodes=*|--cpus-per-task=*|--time=*|--mem=*|--mem-per-cpu=*|--gpus=*|--gres=*|--cpu-bind=*|--mpi=*|--export=*|\
    --partition=*|--job-name=*|--account=*|--distribution=*|--gpus-per-task=*|--hint=*|-[NctpJAG]?*) shift;;
    -u|-v|-K|-l|-Q|--unbuffered|--verbose|--quiet|--label|--exact|--exclusive|--overlap|--kill-on-bad-exit*) shift;;
    --) shift; break;;
    -*) refuse "option $1 is not known here";;
    *) break;;
  esac
done
[ $# -gt 0 ] || refuse "COMMAND is missing"
[ "$tasks" = 1 ] || refuse "there are $tasks tasks"
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_ID=0 exec "$@"
"""
# The script travels in the environment: arguments are shown to all who see the session. It finds the variables of a
# batch script of Slurm, of which those of several kernels would have MPI start its processes by srun: it does by ssh.
START = f"""\
d=$(mktemp -d "${{TMPDIR:-/tmp}}/job.XXXXXX" 2>/dev/null || mktemp -d "${{HOME:-.}}/job.XXXXXX") &&
f="$d/$0" && printf '%s' "${SCRIPT_VARIABLE}" >"$f" && chmod 700 "$f" &&
mkdir "$d/bin" && cat >"$d/bin/srun" <<'srun' && chmod 755 "$d" "$d/bin" "$d/bin/srun" ||
{_SRUN}srun
{{ echo "retinue: there is no space for the script" >&2; exit 126; }}
unset {SCRIPT_VARIABLE}
n=${{BACKENDAI_CLUSTER_SIZE:-1}} h=${{BACKENDAI_CLUSTER_HOSTS:-main1}}
: "${{SLURM_JOB_ID:=${{BACKENDAI_SESSION_ID:-}}}}" "${{SLURM_NTASKS:=$n}}" "${{SLURM_JOB_NUM_NODES:=$n}}"
: "${{SLURM_JOB_NODELIST:=$h}}" "${{SLURMD_NODENAME:=${{BACKENDAI_CLUSTER_HOST:-main1}}}}" "${{SLURM_PROCID:=0}}"
if [ "$n" = 1 ]; then : "${{SLURM_TASKS_PER_NODE:=1}}"; else : "${{SLURM_TASKS_PER_NODE:=1(x$n)}}"; fi
SLURM_JOBID=$SLURM_JOB_ID SLURM_NPROCS=$SLURM_NTASKS SLURM_NNODES=$SLURM_JOB_NUM_NODES SLURM_LOCALID=0 SLURM_NODEID=0
SLURM_NODELIST=$SLURM_JOB_NODELIST PATH=$PATH:$d/bin
: "${{OMPI_MCA_plm:=rsh}}" "${{PRTE_MCA_plm:=ssh}}" "${{HYDRA_BOOTSTRAP:=ssh}}"
export SLURM_JOB_ID SLURM_JOBID SLURM_NTASKS SLURM_NPROCS SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_JOB_NODELIST \\
  SLURM_NODELIST SLURMD_NODENAME SLURM_TASKS_PER_NODE SLURM_PROCID SLURM_LOCALID SLURM_NODEID PATH \\
  OMPI_MCA_plm PRTE_MCA_plm HYDRA_BOOTSTRAP
exec "$f" "$@"
"""
# Of `retinue run`: what says what runs, and how it is followed.
_NOT_TAKEN = frozenset(
    {"kind", "command", "interactive", "tty", "keep", "detach", "dry_run", "fail_fast", "quiet", "output", "name"}
)
_META = "retinue.script"
_LONGEST_NAME = 63
_THOUSANDTHS = 1000


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
            script = f"#!/bin/sh\n{command}\n", "--wrap"
            if isinstance(found.get("script"), str):
                raise click.UsageError("--wrap takes the place of SCRIPT")
        elif isinstance(file := found.get("script"), str):
            source, text = read_file(file)
            script = text, source
        if script is not None:
            options = read_script(*script, typed)
            ctx.meta[_META] = *script, options
            args = [*options.arguments, *args]
        return super().parse_args(ctx, args)

    def _without_sbatch(self, args: list[str]) -> tuple[list[str], list[str]]:
        """Returns the arguments, and the options of sbatch that stood among the options before SCRIPT."""
        own = {
            name: isinstance(item, click.Option) and not item.is_flag
            for item in self.params
            if isinstance(item, click.Option)
            for name in (*item.opts, *item.secondary_opts)
        }
        rest, kept, typed = args, list[str](), list[str]()
        while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
            name = rest[0].partition("=")[0] if rest[0].startswith("--") else rest[0][:2]
            if name not in own and of_sbatch(name[2:] if name.startswith("--") else long_name(name[1:])):
                typed += take_option(rest)
                continue
            has_value = len(rest[0]) > len(name)
            if name == "-p" and ":" not in (value := rest[0][2:] or "".join(rest[1:2])):
                raise click.UsageError(f"-p is a port here; for partition {value!r}: --partition={value}")
            kept.append(rest.pop(0))
            if own.get(name) and not has_value and rest:
                kept.append(rest.pop(0))
        return [*kept, *rest], typed


def _output(_context: click.Context, parameter: click.Parameter, value: str | None) -> bool:
    """Returns whether only ids are printed; usage errors for a file, as sbatch would take one."""
    if value not in (None, "name"):
        raise click.BadParameter(
            "output is kept by the manager (retinue logs NAME); `-o name` prints the id alone", param=parameter
        )
    return value is not None


def _name(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Returns the name; usage errors for a number, which to sbatch is one of tasks."""
    if value.isdecimal():
        raise click.BadParameter(
            f"is the name of the session here; for {value} tasks: --ntasks={value}", param=parameter
        )
    return value


@click.command("submit", cls=_Submit, context_settings={"allow_interspersed_args": False})
@click.option(
    "-n", "--name", default="", callback=_name, help="Exactly this name.  [default: the job's name and some digits]"
)
@click.option("--job-name", default="", help="How the name begins.  [default: as the script is called]")
@click.option("-a", "--array", metavar="INDICES", help="A session for each: 0-9, 1,3,7-11:2, or 0-99%5, 5 at a time.")
@click.option(
    "--depends-on-each",
    multiple=True,
    metavar="ARRAY",
    help="With --array: each session after the success of the one of ARRAY with its index.",
)
@click.option("--request-id", default="", metavar="UUID", help="The same one again makes nothing twice.")
@click.option("--wrap", metavar="COMMAND", help="Run COMMAND by /bin/sh in place of a script.")
@click.option("--wait", is_flag=True, help="Wait for the end, and end with its exit code; of an array, the highest.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but the id, and what is wrong.")
@click.option("-o", "--output", "only_ids", callback=_output, metavar="name", help="As -q.")
@click.option("--dry-run", "--validate-only", is_flag=True, help="Only check: nothing is made.")
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
    wrap: str | None,
    wait: bool,
    quiet: bool,
    only_ids: bool,
    script: str | None,
    arguments: tuple[str, ...],
    **given: Any,
) -> int:
    """Run SCRIPT with its ARGUMENTS as a batch session; print its id, and its name on standard error.

    Lines `#RETINUE OPTIONS` before the first command of the script are options of this command, and those of
    `retinue run`; options given here count before them. Lines `#SBATCH OPTIONS`, and options of sbatch given here, are
    read as far as they mean the same; what would mean something else is refused. The script finds $SLURM_JOB_ID,
    $SLURM_NTASKS and others of Slurm, and an srun for one task. Of an array, each session has its number in
    $ARRAY_INDEX and $SLURM_ARRAY_TASK_ID, and the label `array`; all of them are made, or none. The name of an array
    stands for all of its sessions in --depends-on and --after.

    \b
      #!/bin/bash
      #RETINUE --slots cpu=4,mem=8g --time-limit 2h
      #RETINUE --array 0-9%2
      python3 train.py --seed "$ARRAY_INDEX"
    """
    del wrap
    if _META not in context.meta:
        raise click.UsageError("name a SCRIPT, or give --wrap COMMAND")
    text, source, options = context.meta[_META]
    assert isinstance(options, ScriptOptions)  # noqa: S101  # put there by parse_args
    for number, option, why in () if quiet or only_ids else options.ignored:
        location = f"{safe(source)}:{number}: " if number else ""
        click.echo(f"retinue: {location}--{option} is left out: {why}", err=True)
    asked = parse_array(array) if array is not None else options.array
    made = request_id or str(uuid.uuid4())
    file = "wrap" if script is None else "job" if script == "-" else Path(script).name
    job_name = job_name or _stem(file)
    name = name or f"{job_name[: _LONGEST_NAME - 11]}-{_digits(made)}"
    spec = request({**given, "kind": "batch", "name": name, "command": ["/bin/sh", "-c", START, file, *arguments]})
    if spec.cluster_size > 1 and (call := calls(text, "srun")) is not None:
        click.echo(
            f"retinue: {safe(source)}:{call}: srun starts nothing in other kernels: the script runs in main1, and "
            "reaches them by `ssh HOST COMMAND`, each HOST of $SLURM_JOB_NODELIST",
            err=True,
        )
    _main(spec).environment[SCRIPT_VARIABLE] = text
    _set_variables(spec, job_name)
    if depends_on_each and asked is None:
        raise click.UsageError("--depends-on-each is for an --array: --depends-on waits for all of one")
    async with connection.client() as client:
        for references in (spec.depends_on, spec.runs_after):
            references[:] = [one for name in references for one in await _elements_of(client, name)]
        specs = [spec] if asked is None else _elements(spec, asked, depends_on_each)
        answer = await client.sessions.create_many(specs, request_id=made, validate_only=dry_run, all_or_nothing=True)
        if print_refusals([(one, source) for one in specs], answer, option_of):
            return ExitCode.FAILURE
        for result in answer.results:
            click.echo(result.accepted.id or result.accepted.name)
        if not (quiet or only_ids):
            done = "checked" if dry_run else "submitted"
            many = f"array {name}: {len(specs)} sessions; retinue ls -l array={name}"
            click.echo(f"{done} {name if asked is None else many}", err=True)
        if dry_run or not wait:
            return ExitCode.OK
        async with said_when_cancelled("what was submitted goes on; `retinue rm` ends it"):
            codes = await asyncio.gather(*(_wait(client, result.accepted.id) for result in answer.results))
    return max(codes)


submit_command.params[:0] = [parameter for parameter in run_command.params if parameter.name not in _NOT_TAKEN]


async def _wait(client: Client, identity: str) -> int:
    session = await client.sessions.get(identity)
    await session.wait_ended()
    return of_session(session.view)


def _set_variables(spec: session_pb2.SessionSpec, job_name: str) -> None:
    """Sets the variables of Slurm that are known here, unless they are given; the others the session knows."""
    variables = {"SLURM_JOB_NAME": job_name}
    main = _main(spec)
    try:
        cpus = parse_amount("cpu", main.slots.get("cpu") or spec.kernel.slots.get("cpu") or "0") // _THOUSANDTHS
    except AmountError:
        # The manager says what is wrong with it.
        cpus = 0
    if cpus:
        variables["SLURM_CPUS_PER_TASK"] = variables["SLURM_CPUS_ON_NODE"] = str(cpus)
    for name, value in variables.items():
        if name not in main.environment and name not in spec.kernel.environment:
            main.environment[name] = value


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


async def _elements_of(client: Client, name: str) -> Sequence[str]:
    """Returns the ids of the sessions of an array, of each index the newest; what is none stands for itself."""
    try:
        await client.sessions.get(name)
    except NotFound:
        caller = (await client.users.caller()).name
        named = selected(term("owner", caller), [term("labels.array", name)])
        newest: dict[str, str] = {}
        async for session in client.sessions.list(filter=named, show_ended=True):
            newest.setdefault(session.name, session.id)
        # In the order of their indices.
        return [newest[one] for one in sorted(newest, key=lambda one: (len(one), one))] or [name]
    return [name]


def _elements(
    spec: session_pb2.SessionSpec, array: Array, parents: Sequence[str] = ()
) -> Sequence[session_pb2.SessionSpec]:
    """Returns the sessions of an array, each after the one of the arrays `parents` with its index. So many run at a
    time as there are chains of sessions of which each runs after the one before.
    """
    name, made = spec.name, list[session_pb2.SessionSpec]()
    for position, index in enumerate(array.indices):
        one = session_pb2.SessionSpec()
        one.CopyFrom(spec)
        one.name = f"{name}-{index}"
        one.labels["array"] = name
        one.depends_on.extend(f"{parent}-{index}" for parent in parents)
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
