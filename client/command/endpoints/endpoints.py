"""`retinue endpoint`: inference endpoints, their revisions, traffic and replicas."""

from __future__ import annotations

import asyncio
import sys
import time
import webbrowser
from typing import Any

import click

from retinue.client import enum_names
from retinue.client.command.endpoints.endpoint_options import (
    command_argument,
    endpoint_options,
    file_option,
    name_argument,
    revision_options,
    set_endpoint,
    spec_in,
)
from retinue.client.command.endpoints.endpoint_rollouts import ROLLOUT_COMMANDS
from retinue.client.command.endpoints.endpoint_tokens import token_group
from retinue.client.command.endpoints.endpoint_views import (
    STATE,
    columns,
    print_endpoint,
    replica_columns,
    say_unresolved,
)
from retinue.client.command.endpoints.endpoint_wait import wait_deleted, wait_options, wait_ready, wait_scaled
from retinue.client.command.shell import options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash
from retinue.client.command.show.output import list_output_option, output_option, print_list, print_message, table
from retinue.client.errors import UsageError
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb


@click.group("endpoint")
def endpoint_command() -> None:
    """Deploy and scale endpoints: programs that answer HTTP or gRPC at an address that does not change.

    \b
      retinue endpoint create web --public --port 8000 --max 3 --wait -- \\
          python3 -m http.server 8000
      curl "$(retinue endpoint open web)"

    The same in a file, with all there is to say:

    \b
      name: llm
      revision:
        port: 8000
        maxConcurrency: 8
        readiness: {http: {path: /health}}
        session:
          kernel: {image: my/model, command: [serve], slots: {cpu: 2, mem: 4g}}
      scaling: {min: 1, max: 10}
      rollout: {canary: {steps: [{percent: 10, hold: 300s}]}}
    """


def _print_table(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)


@endpoint_command.command("create")
@file_option
@revision_options
@endpoint_options
@wait_options
@click.option("--validate-only", "--dry-run", is_flag=True, help="Check the request; create nothing.")
@output_option
@click.argument("endpoint", required=False, default="", metavar="[NAME]")
@command_argument
@pass_connection
@asynchronous
async def create_endpoint(
    connection: Connection,
    /,
    *,
    endpoint: str,
    file: str | None,
    wait: bool,
    wait_seconds: float | None,
    validate_only: bool,
    output: str,
    **given: Any,
) -> None:
    """Create an endpoint whose replicas run COMMAND, or the endpoint in a file; options override the file.

    \b
      retinue endpoint create llm --image my/model --port 8000 --readiness /health \\
          --slots cpu=2,mem=4g --max-concurrency 8 --min 1 --max 10 -- serve --port 8000
    """
    spec = spec_in(file) if file else epb.EndpointSpec(name=endpoint)
    if endpoint:
        spec.name = endpoint
    set_endpoint(spec, given)
    if not file and (not spec.name or not spec.revision.port):
        raise UsageError("an endpoint needs a name and a port, or a file: retinue endpoint create NAME --port 8000")
    async with connection.client() as client:
        made = await client.endpoints.create(spec, validate_only=validate_only)
        if wait and not validate_only:
            made = await wait_ready(client, made.id, wait_seconds)
        print_endpoint(output, made)
    await asyncio.to_thread(say_unresolved, made.url)


@endpoint_command.command("ls")
@click.option("--project", default="", help="List endpoints of this project.")
@click.option("--all", "deleted", is_flag=True, help="List endpoints deleted within the last day, too.")
@list_output_option
@pass_connection
@asynchronous
async def list_endpoints(connection: Connection, project: str, output: str, *, deleted: bool) -> None:
    """List endpoints, newest first."""
    async with connection.client() as client:
        found = [item async for item in client.endpoints.list(project=project, deleted=deleted)]
    message = pb.ListEndpointsResponse(endpoints=found)
    print_list(output, message, found, columns(time.time()), lambda item: item.spec.name)


@endpoint_command.command("get")
@output_option
@name_argument
@pass_connection
@asynchronous
async def get_endpoint(connection: Connection, endpoint: str, output: str) -> None:
    """Show one endpoint and its replicas."""
    async with connection.client() as client:
        found = await client.endpoints.get(endpoint)
    print_endpoint(output, found.endpoint)
    if output in {"table", "wide"} and found.replicas:
        click.echo()
        print_list(output, found, found.replicas, replica_columns(time.time()), lambda item: item.session)


@endpoint_command.command("scale")
@click.option(
    "--min", "least", type=click.IntRange(0, 1000), default=None, help="Fewest replicas; 0 lets the endpoint sleep."
)
@click.option("--max", "most", type=click.IntRange(1, 1000), default=None, help="Most replicas.")
@click.option("--floor", type=click.IntRange(0, 1000), default=None, help="Fewest replicas, for a time.")
@click.option(
    "--for",
    "seconds",
    callback=options.span,
    default="1h",
    metavar="TIME",
    help="How long the floor holds.  [default: 1h]",
)
@wait_options
@output_option
@name_argument
@pass_connection
@asynchronous
async def scale(
    connection: Connection,
    /,
    *,
    endpoint: str,
    least: int | None,
    most: int | None,
    floor: int | None,
    seconds: float,
    wait: bool,
    wait_seconds: float | None,
    output: str,
) -> None:
    """Change the bounds of an endpoint, or put a floor under it for a time."""
    spec, mask = epb.EndpointSpec(), []
    if least is not None:
        spec.scaling.min = least
        mask.append("scaling.min")
    if most is not None:
        spec.scaling.max = most
        mask.append("scaling.max")
    if not mask and floor is None:
        raise click.UsageError("use --min, --max or --floor")
    async with connection.client() as client:
        if mask:
            changed = await client.endpoints.update(endpoint, spec, mask=mask)
        if floor is not None:
            changed = await client.endpoints.set_floor(endpoint, floor, seconds)
        print_endpoint(output, await wait_scaled(client, changed, wait_seconds) if wait else changed)


@endpoint_command.command("explain")
@output_option
@name_argument
@pass_connection
@asynchronous
async def explain(connection: Connection, endpoint: str, output: str) -> None:
    """Explain the number of replicas, and what each of them waits for."""
    async with connection.client() as client:
        found = await client.endpoints.explain(endpoint)
    if output in {"json", "yaml"}:
        print_message(output, found)
        return
    print_endpoint("table", found.endpoint)
    if found.HasField("last_decision"):
        click.echo()
        _print_decision(found.last_decision)
    if found.replicas:
        click.echo()
        print_list(output, found, found.replicas, replica_columns(time.time()), lambda item: item.session)
    if found.failure_output:
        click.echo("\nOutput of the replica that failed last:")
        for line in found.failure_output.splitlines()[-20:]:
            click.echo(f"  {safe(line)}")


def _print_decision(decision: epb.ScalingDecision) -> None:
    click.echo(f"{decision.from_target} to {decision.to_target} replicas: {safe(decision.reason)}")
    in_flight = decision.in_flight if decision.HasField("in_flight") else "unknown"
    click.echo(
        f"  ready {decision.ready}, starting {decision.starting}, in flight {in_flight}, held {decision.held}, "
        f"floor {decision.floor}, asked for {decision.recommendation}"
    )
    rows = [
        [
            safe(item.name),
            safe(item.target),
            safe(item.value) if item.HasField("value") else "unknown",
            str(item.missing),
            or_dash(item.stable_mean),
            or_dash(item.burst_mean),
            str(item.recommendation),
        ]
        for item in decision.metrics
    ]
    titles = ["METRIC", "PER REPLICA", "NOW", "MISSING", "STABLE MEAN", "BURST MEAN", "ASKS FOR"]
    _print_table(table(titles, rows, colour=sys.stdout.isatty()))


@endpoint_command.command("top")
@click.option(
    "-n", "rounds", type=click.IntRange(0), default=0, help="Print this many times.  [default: until interrupted]"
)
@name_argument
@pass_connection
@asynchronous
async def top(connection: Connection, endpoint: str, rounds: int) -> None:
    """Show the numbers of an endpoint every 2 seconds."""
    number = 0
    async with connection.client() as client:
        async for found in client.endpoints.stats(endpoint):
            click.echo(
                f"{enum_names.name_of(STATE, found.state)} {found.ready_replicas}/{found.target} held {found.held} "
                f"routers {found.routers - found.routers_missing}/{found.routers}"
            )
            rows = [
                [
                    str(item.revision),
                    str(item.ready_replicas),
                    str(item.in_flight),
                    str(item.pending),
                    f"{item.requests_per_second:.1f}",
                    f"{item.errors_per_second:.1f}",
                    f"{item.latency_p50.ToMilliseconds()} ms",
                    f"{item.latency_p95.ToMilliseconds()} ms",
                ]
                for item in found.revisions
            ]
            titles = ["REVISION", "READY", "IN FLIGHT", "WAITING", "REQUESTS/S", "ERRORS/S", "P50", "P95"]
            _print_table(table(titles, rows, colour=sys.stdout.isatty()))
            number += 1
            if number == rounds:
                return


@endpoint_command.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the replicas end.")
@click.option(
    "--tail", type=click.IntRange(0, 100_000), default=100, help="Print only the last lines of each.", show_default=True
)
@name_argument
@pass_connection
@asynchronous
async def logs(connection: Connection, endpoint: str, tail: int, *, follow: bool) -> None:
    """Print the output of all replicas, each line with its replica in front."""
    async with connection.client() as client:
        replicas = (await client.endpoints.get(endpoint)).replicas

        async def print_output(replica: epb.Replica) -> None:
            rest = b""
            async for chunk in client.sessions.logs(replica.session_id, follow=follow, tail=tail):
                *lines, rest = (rest + chunk.data).split(b"\n")
                for line in lines:
                    click.echo(f"{safe(replica.session)}: {safe(line.decode(errors='replace'))}")
            if rest:
                click.echo(f"{safe(replica.session)}: {safe(rest.decode(errors='replace'))}")

        async with asyncio.TaskGroup() as group:
            for replica in replicas:
                group.create_task(print_output(replica))


@endpoint_command.command("open")
@click.option("--path", default="", help="Path of the link, with a query if needed.")
@click.option("--browser", is_flag=True, help="Open the link in a browser here; for public endpoints.")
@name_argument
@pass_connection
@asynchronous
async def open_endpoint(connection: Connection, /, *, endpoint: str, path: str, browser: bool) -> None:
    """Print the address of an endpoint, for curl or a browser.

    \b
      curl -H "Authorization: Bearer $(retinue endpoint token create llm)" \\
          "$(retinue endpoint open llm --path /v1/models)"
    """
    async with connection.client() as client:
        found = (await client.endpoints.get(endpoint)).endpoint
    if not found.url:
        raise UsageError(f"{safe(endpoint)} has no address: no router serves it")
    url = safe(found.url) + (path if path.startswith("/") or not path else f"/{path}")
    click.echo(url)
    await asyncio.to_thread(say_unresolved, url)
    if browser and not await asyncio.to_thread(webbrowser.open, url):
        raise UsageError("this machine has no browser to open it in")


@endpoint_command.command("rm")
@wait_options
@click.argument("endpoints", nargs=-1, required=True, metavar="NAME…")
@pass_connection
@asynchronous
async def remove_endpoints(
    connection: Connection, /, *, endpoints: tuple[str, ...], wait: bool, wait_seconds: float | None
) -> None:
    """Drain and end all replicas of endpoints."""
    async with connection.client() as client:
        ending = [(await client.endpoints.delete(endpoint)).id for endpoint in endpoints]
        if wait:
            await asyncio.gather(*(wait_deleted(client, endpoint, wait_seconds) for endpoint in ending))
    for endpoint in endpoints:
        click.echo(safe(endpoint))


for _command in (*ROLLOUT_COMMANDS, token_group):
    endpoint_command.add_command(_command)
