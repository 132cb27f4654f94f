"""`retinue apply`: asks for all the sessions in a file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.sessions.apply_plan import Step, labelled, plan
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.print_error import print_violations
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text_files import read_file
from retinue.client.command.show.output import output_option, print_message, table
from retinue.client.errors import CallError, NotFound
from retinue.client.manifest import read_manifest
from retinue.client.transport.rpc_errors import from_status
from retinue.manager.v1 import session_service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from retinue.client.aio import Client
    from retinue.manager.v1 import endpoint_pb2, session_pb2

# Of names, at a time.
_QUESTIONS = 32


@click.command("apply")
@click.option("-f", "--file", "file", required=True, metavar="FILE", help="YAML or JSON; - is standard input.")
@click.option(
    "--request-id", default="", metavar="UUID", help="Key of the request: the same key again creates nothing."
)
@click.option("--validate-only", "--dry-run", is_flag=True, help="Check the request; create nothing.")
@click.option(
    "--all-or-nothing/--each-by-itself",
    "all_or_nothing",
    default=None,
    help="Create no session if one is refused.  [default: if sessions of the file depend on others]",
)
@click.option("--again", is_flag=True, help="Run succeeded sessions again, too.")
@output_option
@pass_connection
@asynchronous
async def apply_command(
    connection: Connection,
    *,
    file: str,
    request_id: str,
    validate_only: bool,
    all_or_nothing: bool | None,
    again: bool,
    output: str,
) -> int:
    """Submit all sessions in a file, in one request.

    The file has one document per session, or lists of sessions; fields are those of the API's JSON, as `retinue get -o
    yaml` prints them under `spec`. Sessions may depend on each other by name, in any order: then either all of them are
    created or none. Otherwise each is created by itself. A refused session is reported with its line, and the code is
    1.

    \b
      name: prepare
      type: batch
      kernel: {command: [sh, -c, "make data"]}
      ---
      name: train
      type: batch
      dependsOn: [prepare]
      kernel: {command: [python3, train.py], slots: {cpu: 4}}

    You may apply the same file again. A session with the same name and request is left alone while it waits or runs,
    and when it has succeeded; one that failed or was ended is created again, with the sessions that depend on it. A
    session that differs from a live one of its name is refused: end that one first. Sessions without a name are always
    new.

    A document with `kind: endpoint` is an endpoint: it is created, or changed to match the file; a revision is deployed
    only when it differs.
    """
    source, text = read_file(file)
    sessions, endpoints = read_manifest(text, source)
    async with connection.client() as client:
        for endpoint, _ in endpoints:
            applied = await _apply_endpoint(client, endpoint, validate_only=validate_only)
            click.echo(f"endpoint {safe(endpoint.name)} {applied}", err=output in ("json", "yaml", "name"))
        if not sessions:
            return ExitCode.OK
        specs = [labelled(spec) for spec, _ in sessions]
        # The server itself knows a repeated request.
        found = {} if request_id else await _newest(client, specs)
        steps = plan(specs, found, again=again)
        if all_or_nothing is None:
            all_or_nothing = any(spec.depends_on or spec.runs_after or spec.runs_after_failure for spec in specs)
        asked = [step.spec for step in steps if step.kept is None]
        answer = session_service_pb2.BatchCreateSessionsResponse()
        if asked:
            answer = await client.sessions.create_many(
                asked, request_id=request_id, validate_only=validate_only, all_or_nothing=all_or_nothing
            )
    made = [(step.spec, f"{source}:{line}") for step, (_, line) in zip(steps, sessions, strict=True) if not step.kept]
    refused = print_refusals(made, answer)
    for place, step in enumerate(steps):
        if step.kept is not None:
            accepted = session_service_pb2.AcceptedSession(id=step.kept.id, name=step.kept.spec.name)
            answer.results.insert(place, session_service_pb2.BatchCreateSessionsResult(accepted=accepted))
    if output in ("json", "yaml"):
        print_message(output, answer)
    else:
        _print_made(steps, answer, output)
    return ExitCode.FAILURE if refused else ExitCode.OK


async def _newest(client: Client, specs: Sequence[session_pb2.SessionSpec]) -> dict[str, session_pb2.Session]:
    """Returns the caller's sessions of the names: the one that has not ended, else the newest."""
    gate = asyncio.Semaphore(_QUESTIONS)

    async def read(spec: session_pb2.SessionSpec) -> session_pb2.Session | None:
        async with gate:
            try:
                session = (await client.sessions.get(spec.name)).view
            except NotFound:
                session = None
            # An id may begin with the name, and other projects may have sessions of it.
            if session is not None and session.spec.name == spec.name and spec.project in {"", session.spec.project}:
                return session
            return await _newest_of_project(client, spec, owner) if spec.project else None

    named = [spec for spec in specs if spec.name]
    owner = (await client.users.caller()).name if any(spec.project for spec in named) else ""
    found = await asyncio.gather(*map(read, named))
    return {session.spec.name: session for session in found if session is not None}


async def _newest_of_project(client: Client, spec: session_pb2.SessionSpec, owner: str) -> session_pb2.Session | None:
    values = {"name": spec.name, "project": spec.project, "owner": owner}
    query = " AND ".join(f"{field} = {json.dumps(value)}" for field, value in values.items())
    # While one has not ended, no newer one has its name.
    async with contextlib.aclosing(client.sessions.list(filter=query, show_ended=True, limit=1)) as listed:
        async for session in listed:
            return session.view
    return None


def _print_made(steps: Sequence[Step], answer: session_service_pb2.BatchCreateSessionsResponse, output: str) -> None:
    """Prints the sessions that were made, and those that were left alone."""
    rows = []
    for step, result in zip(steps, answer.results, strict=True):
        if result.HasField("accepted"):
            became = "created" if result.accepted.id else "(only checked)"
            if step.kept is not None:
                became = f"unchanged ({enum_names.state_of(step.kept)})"
            rows.append([safe(result.accepted.name), result.accepted.id, became])
    if output == "name":
        for name, session_id, _ in rows:
            click.echo(session_id or name)
    elif rows:
        for line in table(["NAME", "ID", "BECAME"], rows, colour=sys.stdout.isatty()):
            click.echo(line)


def print_refusals(
    specs: Iterable[tuple[session_pb2.SessionSpec, str]],
    answer: session_service_pb2.BatchCreateSessionsResponse,
    name_of: Callable[[str, session_pb2.SessionSpec], str] = lambda path, _: field_of(path),
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
    message = refusal.message
    for violation in refusal.violations:
        if violation.field:
            message = message.replace(violation.field, name_of(violation.field, spec))
    click.echo(f"{location}:{who} refused: {safe(message)} [{safe(refusal.reason)}]", err=True)
    print_violations(refusal, lambda path: name_of(path, spec))


def field_of(path: str) -> str:
    """Returns the path of a field in one session of a request; where the session is, the line says."""
    return re.sub(r"^specs\[\d+\]\.", "", path)
