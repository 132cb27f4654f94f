"""`retinue sbatch`: submits a script with the grammar and the words of Slurm's sbatch."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.client.command.sessions import submit
from retinue.client.command.sessions.script_options import read_script
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text_files import decode, read_file
from retinue.client.command.slurm.slurm_command import OwnGrammarCommand, version_option
from retinue.client.command.slurm_scripts import sbatch_grammar
from retinue.client.command.slurm_scripts.submitting_machine import exported, is_mounted, shared_mounts
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Options for every job, as in lines #RETINUE: with mounts and images of a place, scripts run as they are.
_OPTIONS_VARIABLE = "RETINUE_SBATCH_OPTIONS"
_IGNORE_VARIABLE = "SBATCH_IGNORE_UNKNOWN"


class _Sbatch(OwnGrammarCommand):
    """Says on its page of help which options of sbatch there are."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options of sbatch by what becomes of them."""
        super().format_options(ctx, formatter)
        for treatment in sbatch_grammar.Treatment:
            with formatter.section(f"Options of sbatch that are {treatment.value}"):
                formatter.write_dl(
                    [
                        (f"-{option.letter}, --{option.name}" if option.letter else f"--{option.name}", option.text)
                        for option in sbatch_grammar.OPTIONS
                        if option.treatment is treatment
                    ]
                )


@click.command(
    "sbatch",
    cls=_Sbatch,
    options_metavar="[OPTIONS OF SBATCH]",
)
@version_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGUMENTS]...")
@pass_connection
@asynchronous
async def sbatch_command(connection: Connection, words: tuple[str, ...]) -> int:
    """Submit a script as Slurm's sbatch does, and print `Submitted batch job NUMBER`.

    This is `retinue submit` with sbatch's grammar: options before SCRIPT, in lines `#SBATCH`, and in variables such as
    SBATCH_PARTITION; without SCRIPT and --wrap it reads standard input. Mount roots of the resource group that exist on
    this machine, too, are mounted at their paths. A job starts in the directory of the submission if that is in such a
    root, else in /home/work. Long options of `retinue submit` that sbatch lacks, such as --mount and --image, are
    accepted; $RETINUE_SBATCH_OPTIONS has options for every job. Options without a counterpart are refused together, or
    with --ignore-unknown ($SBATCH_IGNORE_UNKNOWN) ignored.
    """
    script, file, arguments = _read(list(words))
    given = _given(script)
    options = script.options
    quiet = "quiet" in options.given or given["quiet"]
    for ignored in () if quiet else options.ignored:
        click.echo(f"sbatch: warning: {safe(str(ignored))}", err=True)
    if options.given.get("export", "ALL") == "ALL":
        given["env"] = exported(os.environ, image=bool(given["image"])) | given["env"]
    here = str(Path.cwd())
    async with connection.client() as client:
        given["mount"] = [*given["mount"], *await shared_mounts(client, given)]
        if is_mounted(here, given["mount"]):
            given["workdir"] = given["workdir"] or here
        job = submit.job_of(
            script,
            given,
            file=file,
            arguments=arguments,
            name=given["name"],
            job_name=given["job_name"],
            array=given["array"],
            parents=given["depends_on_each"],
            request_id=given["request_id"],
            ignore_unknown=_ignores_unknown(options.given),
            as_slurm=True,
        )
        for text in () if quiet else job.left_out:
            click.echo(f"sbatch: warning: {safe(text)}", err=True)
        accepted = await submit.create(client, job, validate_only=given["dry_run"])
        if accepted is None:
            return ExitCode.FAILURE
        if given["dry_run"]:
            click.echo(f"sbatch: Job {safe(job.spec.name)} would be accepted", err=True)
            return ExitCode.OK
        number = accepted[0].number
        if "parsable" in options.given:
            click.echo(number)
        elif not quiet:
            click.echo(f"Submitted batch job {number}")
        return await submit.wait_for(client, accepted) if given["wait"] else ExitCode.OK


def _read(words: list[str]) -> tuple[submit.Script, str, Sequence[str]]:
    """Returns the script that words of the command line name, what it is called, and its arguments.
    Raises UsageError.
    """
    own = submit.own_options()
    given, wrong = list[sbatch_grammar.OptionValue](), list[UsageError]()
    while words and words[0].startswith("-") and words[0] not in ("-", "--"):
        try:
            given.append(sbatch_grammar.take(words, own))
        except sbatch_grammar.UnknownOptionError as error:
            wrong.append(error)
    if words[:1] == [":"]:
        raise UsageError(f"`:`: {sbatch_grammar.HETEROGENEOUS}")
    words = words[1:] if words[:1] == ["--"] else words
    wrapped = next((one.value for one in reversed(given) if one.name == "wrap"), None)
    if wrapped is not None:
        if words:
            raise UsageError("Script arguments not permitted with --wrap option")
        (text, source), file, arguments = submit.Script.of_command(wrapped), "wrap", list[str]()
    elif words:
        source, text = read_file(words[0])
        file, arguments = "sbatch" if words[0] in ("-", "/dev/stdin") else Path(words[0]).name, words[1:]
    else:
        source, file, arguments = "standard input", "sbatch", []
        text = decode(sys.stdin.buffer.read())
    unknown = _ignores_unknown(one.name for one in given)
    options = read_script(
        text,
        source,
        environment=sbatch_grammar.from_environment(os.environ),
        typed=[*given, *wrong],
        own=own,
        ignore_unknown=unknown,
    )
    return submit.Script(text, source, options), file, arguments


def _ignores_unknown(given: Iterable[str]) -> bool:
    return "ignore-unknown" in given or bool(os.environ.get(_IGNORE_VARIABLE))


def _given(script: submit.Script) -> dict[str, Any]:
    """Returns the options of `retinue submit` by their names. Raises click.UsageError."""
    first = shlex.split(os.environ.get(_OPTIONS_VARIABLE, ""))
    options = script.options
    parser = click.Command("sbatch", params=submit.submit_command.params)
    context = parser.make_context("sbatch", [*first, *options.arguments, *submit.from_here(options.given)])
    return context.params
