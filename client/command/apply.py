"""`retinue apply`: asks for all the sessions in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.client.command.connection import Connection, asynchronous, pass_connection
from retinue.client.command.exit_codes import ExitCode
from retinue.client.command.output import output_option, print_message, table
from retinue.client.command.text import safe
from retinue.client.errors import CallError, UsageError, from_status
from retinue.client.manifest import read_specs

if TYPE_CHECKING:
    pass


@click.command("apply")
@click.option("-f", "--file", "file", required=True, metavar="FILE", help="YAML or JSON; - is standard input.")
@click.option("--request-id", default="", metavar="UUID", help="The same one again makes nothing twice.")
@click.option("--validate-only", is_flag=True, help="Only check: nothing is made.")
@output_option
@pass_connection
@asynchronous
async def apply_command(connection: Connection, file: str, request_id: str, validate_only: bool, output: str) -> int:
    """Asks for all the sessions in a file, in one request.

    The file has one document per session, or lists of sessions; fields are those of the API's JSON, as `retinue get -o yaml` prints them under
    `spec`. Sessions may depend on each other by name, in any order. A refused session is reported with its line and does not hinder the
    others, but for those that depend on it; the code is 1 then.

    \b
      name: prepare
      type: batch
      kernel: {command: [sh, -c, "make data"]}
      ---
      name: train
      type: batch
      dependsOn: [prepare]
      kernel: {command: [python3, train.py], slots: {cpu: 4}}
    """
    source, text = read_file(file)
    specs = read_specs(text, source)
    async with connection.client() as client:
        answer = await client.sessions.create_many(
            [spec for spec, _ in specs], request_id=request_id, validate_only=validate_only
        )
    if output in ("json", "yaml"):
        print_message(output, answer)
    elif output == "name":
        for result in answer.results:
            if result.HasField("accepted"):
                click.echo(result.accepted.id or result.accepted.name)
    else:
        rows = [
            [safe(result.accepted.name), result.accepted.id or "(only checked)"]
            for result in answer.results
            if result.HasField("accepted")
        ]
        for line in table(["NAME", "ID"], rows, colour=sys.stdout.isatty()) if rows else ():
            click.echo(line)
    refused = False
    for (spec, number), result in zip(specs, answer.results, strict=True):
        if result.HasField("refused"):
            refused = True
            _tell(f"{source}:{number}", spec.name, from_status(result.refused))
    return ExitCode.FAILURE if refused else ExitCode.OK


def _tell(place: str, name: str, refusal: CallError) -> None:
    who = f" {safe(name)}" if name else ""
    click.echo(f"{place}:{who} refused: {safe(refusal.message)} [{safe(refusal.reason)}]", err=True)
    for violation in refusal.violations:
        click.echo(f"  {safe(violation.field)}: {safe(violation.description)}", err=True)


def read_file(file: str) -> tuple[str, str]:
    """Returns a file's name for errors, and its text; `-` is standard input. Raises UsageError."""
    try:
        if file == "-":
            return "standard input", sys.stdin.buffer.read().decode()
        return file, Path(file).read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8") from error
