"""`retinue endpoint token`: what requests to an endpoint come with."""

from __future__ import annotations

import time

import click

from retinue.client.command.endpoints.endpoint_options import name_argument
from retinue.client.command.shell import options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash, since
from retinue.client.command.show.output import Column, output_option, print_list
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb


@click.group("token")
def token_group() -> None:
    """Create, list and revoke the tokens that requests come with."""


@token_group.command("create")
@click.option("--label", "--description", "label", default="", help="Note on the token.")
@click.option(
    "--for",
    "seconds",
    callback=options.span,
    default="90d",
    metavar="TIME",
    help="How long it is valid.  [default: 90d]",
)
@name_argument
@pass_connection
@asynchronous
async def create_token(connection: Connection, endpoint: str, label: str, seconds: float) -> None:
    """Create a token and print it: it is shown once."""
    async with connection.client() as client:
        made = await client.endpoints.create_token(endpoint, label=label, seconds=seconds)
    click.echo(made.secret)


@token_group.command("ls")
@output_option
@name_argument
@pass_connection
@asynchronous
async def list_tokens(connection: Connection, endpoint: str, output: str) -> None:
    """List tokens, newest first."""
    async with connection.client() as client:
        found = [item async for item in client.endpoints.tokens(endpoint)]
    now = time.time()
    columns: tuple[Column[epb.EndpointToken], ...] = (
        Column("ID", lambda item: safe(item.id)),
        Column("LABEL", lambda item: or_dash(item.label)),
        Column("BY", lambda item: safe(item.creator)),
        Column("AGE", lambda item: since(item, "create_time", now)),
        Column("REVOKED", lambda item: since(item, "revoke_time", now)),
    )
    print_list(output, pb.ListEndpointTokensResponse(tokens=found), found, columns, lambda item: item.id)


@token_group.command("revoke")
@name_argument
@click.argument("token_id", metavar="ID")
@pass_connection
@asynchronous
async def revoke_token(connection: Connection, endpoint: str, token_id: str) -> None:
    """Revoke a token."""
    async with connection.client() as client:
        await client.endpoints.revoke_token(endpoint, token_id)
    click.echo(safe(token_id))
