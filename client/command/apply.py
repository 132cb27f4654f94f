"""`retinue apply`: asks for all the sessions in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.client.command.connection import Connection, asynchronous, pass_connection
from retinue.client.command.exit_codes import ExitCode
from retinue.client.command.output import output_option, print_message, table
from retinue.client.command.print_error import print_violations
from retinue.client.command.printable import safe
from retinue.client.errors import CallError, NotFound, UsageError
from retinue.client.manifest import read_manifest
from retinue.client.rpc_errors import from_status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retinue.client.aio import Client
    from retinue.manager.v1 import endpoint_pb2, session_pb2, session_service_pb2


@click.command("apply")
@click.option("-f", "--file", "file", required=True, metavar="FILE", help="YAML or JSON; - is standard input.")
@click.option("--request-id", default="", metavar="UUID", help="The same one again makes nothing twice.")
@click.option("--validate-only", "--dry-run", is_flag=True, help="Only check: nothing is made.")
@click.option("--all-or-nothing", is_flag=True, help="Make no session when one is refused.")
@output_option
@pass_connection
@asynchronous
async def apply_command(
    connection: Connection, *, file: str, request_id: str, validate_only: bool, all_or_nothing: bool, output: str
) -> int:
    """Submit all sessions in a file, in one request.

    The file has one document per session, or lists of sessions; fields are those of the API's JSON, as
    `retinue get -o yaml` prints them under `spec`. Sessions may depend on each other by name, in any order. A refused
    session is reported with its line and does not hinder the others, but for those that depend on it and with
    --all-or-nothing; the code is 1 then.

    \b
      name: prepare
      type: batch
      kernel: {command: [sh, -c, "make data"]}
      ---
      name: train
      type: batch
      dependsOn: [prepare]
      kernel: {command: [python3, train.py], slots: {cpu: 4}}

    A document with `kind: endpoint` is an endpoint: it is made, or changed to what the file says;
    another revision is deployed only when it differs.
    """
    source, text = read_file(file)
    specs, endpoints = read_manifest(text, source)
    async with connection.client() as client:
        for endpoint, _ in endpoints:
            applied = await _apply_endpoint(client, endpoint, validate_only=validate_only)
            click.echo(f"endpoint {safe(endpoint.name)} {applied}", err=output in ("json", "yaml", "name"))
        if not specs:
            return ExitCode.OK
        answer = await client.sessions.create_many(
            [spec for spec, _ in specs],
            request_id=request_id,
            validate_only=validate_only,
            all_or_nothing=all_or_nothing,
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
    refused = print_refusals([(spec, f"{source}:{number}") for spec, number in specs], answer)
    return ExitCode.FAILURE if refused else ExitCode.OK


def print_refusals(
    specs: Sequence[tuple[session_pb2.SessionSpec, str]],
    answer: session_service_pb2.BatchCreateSessionsResponse,
    name_of: Callable[[str, session_pb2.SessionSpec], str] = lambda path, _: path,
) -> bool:
    """Prints why sessions were refused, each with where it was asked for; returns whether any was.
    `name_of` says how fields are called there.
    """
    refused = False
    for (spec, location), result in zip(specs, answer.results, strict=True):
        if result.HasField("refused"):
            refused = True
            _print_refusal(location, spec, from_status(result.refused), name_of)
    return refused


async def _apply_endpoint(client: Client, spec: endpoint_pb2.EndpointSpec, *, validate_only: bool) -> str:
    """Makes an endpoint, or what differs of one that is there; returns what was done."""
    reference = f"{spec.project}/{spec.name}" if spec.project else spec.name
    try:
        found = (await client.endpoints.get(reference)).endpoint
    except NotFound:
        await client.endpoints.create(spec, validate_only=validate_only)
        return "created"
    done = []
    before = found.spec
    if not validate_only:
        after = await client.endpoints.update(found.id, spec)
        done += ["updated"] if after.etag != found.etag else []
    checked = await client.endpoints.deploy(found.id, spec.revision, validate_only=True)
    if checked.deployed.spec != before.revision:
        await client.endpoints.deploy(found.id, spec.revision, validate_only=validate_only)
        done.append(f"deployed revision {checked.deployed.number}")
    return " and ".join(done) or "unchanged"


def _print_refusal(
    location: str,
    spec: session_pb2.SessionSpec,
    refusal: CallError,
    name_of: Callable[[str, session_pb2.SessionSpec], str],
) -> None:
    who = f" {safe(spec.name)}" if spec.name else ""
    click.echo(f"{location}:{who} refused: {safe(refusal.message)} [{safe(refusal.reason)}]", err=True)
    print_violations(refusal, lambda path: name_of(path, spec))


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
