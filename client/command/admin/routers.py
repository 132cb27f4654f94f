"""`retinue routers`: what serves endpoints to clients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash, since
from retinue.client.command.show.output import Column, list_output_option, output_option, print_list, print_one
from retinue.manager.v1 import fleet_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group("routers")
def routers_command() -> None:
    """List, show and revoke routers, which serve endpoints to clients."""


@routers_command.command("ls")
@list_output_option
@pass_connection
@asynchronous
async def list_routers(connection: Connection, output: str) -> None:
    """List the routers by id."""
    async with connection.client() as client:
        routers = [router async for router in client.routers.list()]
    message = pb.ListRoutersResponse(routers=routers)
    print_list(output, message, routers, _columns(time.time()), lambda router: router.id)


def _columns(now: float) -> Sequence[Column[pb.Router]]:
    return (
        Column("ID", lambda router: safe(router.id)),
        Column("STATE", lambda router: enum_names.name_of(enum_names.ROUTER_STATE, router.state)),
        Column("URL", lambda router: or_dash(router.url)),
        Column("ADDRESS", lambda router: or_dash(router.address)),
        Column("VERSION", lambda router: or_dash(router.version), wide=True),
        Column("HEARD", lambda router: since(router, "heartbeat_time", now)),
        Column("AGE", lambda router: since(router, "create_time", now)),
    )


@routers_command.command("get")
@output_option
@click.argument("router")
@pass_connection
@asynchronous
async def get_router(connection: Connection, router: str, output: str) -> None:
    """Show one router."""
    async with connection.client() as client:
        _print(output, await client.routers.get(router))


def _print(output: str, router: pb.Router) -> None:
    facts = [(column.title.lower(), column.value(router)) for column in _columns(time.time())]
    print_one(output, router, facts, router.id)


@routers_command.command("revoke")
@output_option
@click.argument("router")
@pass_connection
@asynchronous
async def revoke_router(connection: Connection, router: str, output: str) -> None:
    """Revoke a router's certificate: it gets no more tables, and reaches no replica."""
    async with connection.client() as client:
        _print(output, await client.routers.revoke(router))
