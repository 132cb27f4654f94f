"""`retinue endpoint deploy`, `promote`, `pause`, `resume`, `rollback` and `traffic`: which revision serves."""

from __future__ import annotations

from typing import Any

import click

from retinue.client.command.endpoints.endpoint_options import (
    command_argument,
    file_option,
    name_argument,
    revision_options,
    set_revision,
    spec_in,
)
from retinue.client.command.endpoints.endpoint_views import print_endpoint
from retinue.client.command.endpoints.endpoint_wait import wait_options, wait_rollout
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.show.output import output_option
from retinue.client.errors import UsageError
from retinue.manager.v1 import endpoint_pb2 as epb


@click.command("deploy")
@file_option
@revision_options
@wait_options
@output_option
@name_argument
@command_argument
@pass_connection
@asynchronous
async def deploy_revision(
    connection: Connection,
    /,
    *,
    endpoint: str,
    file: str | None,
    wait: bool,
    wait_seconds: float | None,
    output: str,
    **given: Any,
) -> None:
    """Create a new revision from a file, or from the newest one, and start its rollout.

    Only `revision` and `rollout` of the file count. Options override its fields. Without a file and options, the newest
    revision is deployed again: all replicas are replaced, and resolve the tag of their image again.
    """
    async with connection.client() as client:
        spec = spec_in(file) if file else epb.EndpointSpec(revision=(await client.endpoints.revision(endpoint)).spec)
        set_revision(spec.revision, given)
        rollout = spec.rollout if spec.HasField("rollout") else None
        made = (await client.endpoints.deploy(endpoint, spec.revision, rollout=rollout)).endpoint
        print_endpoint(output, await wait_rollout(client, made, wait_seconds) if wait else made)


@click.command("promote")
@wait_options
@output_option
@name_argument
@pass_connection
@asynchronous
async def promote(
    connection: Connection, /, *, endpoint: str, output: str, wait: bool, wait_seconds: float | None
) -> None:
    """Take the next step of a rollout without waiting."""
    async with connection.client() as client:
        found = await client.endpoints.promote(endpoint)
        print_endpoint(output, await wait_rollout(client, found, wait_seconds, promoted=True) if wait else found)


@click.command("pause")
@output_option
@name_argument
@pass_connection
@asynchronous
async def pause(connection: Connection, endpoint: str, output: str) -> None:
    """Stop a rollout after what has begun."""
    async with connection.client() as client:
        print_endpoint(output, await client.endpoints.pause(endpoint))


@click.command("resume")
@wait_options
@output_option
@name_argument
@pass_connection
@asynchronous
async def resume(
    connection: Connection, /, *, endpoint: str, output: str, wait: bool, wait_seconds: float | None
) -> None:
    """Continue a paused rollout."""
    async with connection.client() as client:
        found = await client.endpoints.resume(endpoint)
        print_endpoint(output, await wait_rollout(client, found, wait_seconds) if wait else found)


@click.command("rollback")
@click.option("--to", "number", type=click.IntRange(0), default=0, help="Revision to go to.")
@wait_options
@output_option
@name_argument
@pass_connection
@asynchronous
async def roll_back(
    connection: Connection, /, *, endpoint: str, number: int, output: str, wait: bool, wait_seconds: float | None
) -> None:
    """Go back to the newest revision before the serving one that has served;
    while a rollout runs, to where it came from.

    Once more goes further back. `--to` names any other revision.
    """
    async with connection.client() as client:
        found = await client.endpoints.roll_back(endpoint, to_revision=number)
        print_endpoint(output, await wait_rollout(client, found, wait_seconds) if wait else found)


@click.command("traffic")
@output_option
@name_argument
@click.argument("shares", nargs=-1, required=True, metavar="REVISION=PERCENT…")
@pass_connection
@asynchronous
async def set_traffic(connection: Connection, endpoint: str, shares: tuple[str, ...], output: str) -> None:
    """Set the shares of revisions, 100 together."""
    parsed: dict[int, int] = {}
    for share in shares:
        number, _, percent = share.partition("=")
        if not number.isdecimal() or not percent.isdecimal():
            raise UsageError(f"{share!r} is not REVISION=PERCENT")
        parsed[int(number)] = int(percent)
    async with connection.client() as client:
        print_endpoint(output, await client.endpoints.set_traffic(endpoint, parsed))


ROLLOUT_COMMANDS = (deploy_revision, promote, pause, resume, roll_back, set_traffic)
