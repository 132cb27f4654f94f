"""`retinue quotas`: limits of users, projects and resource groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.shell import options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash
from retinue.client.command.show.output import Column, list_output_option, output_option, print_list, print_one
from retinue.manager.v1 import account_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retinue.client.words import QuotaKind

_KIND = click.Choice(["user", "project", "resource-group"])


@click.group("quotas")
def quotas_command() -> None:
    """List, show and set limits of users, projects and resource groups."""


def _columns() -> Sequence[Column[pb.Quota]]:
    return (
        Column("KIND", lambda quota: enum_names.name_of(enum_names.QUOTA_KIND, quota.kind).lower().replace("_", "-")),
        Column("NAME", lambda quota: safe(quota.name)),
        Column("SLOTS", _slots),
        Column("SESSIONS", lambda quota: _of(quota, "max_sessions", quota.usage.sessions)),
        Column("PENDING", lambda quota: _of(quota, "max_pending_sessions", quota.usage.pending_sessions)),
        Column(
            "SYSTEM", lambda quota: str(quota.max_system_sessions) if quota.HasField("max_system_sessions") else "-"
        ),
        Column("PRIORITY", lambda quota: str(quota.highest_priority) if quota.HasField("highest_priority") else "-"),
    )


def _slots(quota: pb.Quota) -> str:
    return or_dash(" ".join(f"{slot}={quota.usage.slots[slot]}/{quota.slots[slot]}" for slot in sorted(quota.slots)))


def _of(quota: pb.Quota, field: str, number: int) -> str:
    """Returns the use and its limit: `3/10`; without a limit only the former."""
    return f"{number}/{getattr(quota, field)}" if quota.HasField(field) else str(number)  # type: ignore[arg-type]  # one of ours


@quotas_command.command("ls")
@click.option("--kind", type=_KIND, help="Only this kind.")
@list_output_option
@pass_connection
@asynchronous
async def list_quotas(connection: Connection, kind: QuotaKind | None, output: str) -> None:
    """List quotas by kind and name: what counts against each, and its limits."""
    async with connection.client() as client:
        quotas = [quota async for quota in client.quotas.list(kind=kind or "")]
    print_list(output, pb.ListQuotasResponse(quotas=quotas), quotas, _columns(), lambda quota: quota.name)


@quotas_command.command("get")
@output_option
@click.argument("kind", type=_KIND)
@click.argument("name")
@pass_connection
@asynchronous
async def get_quota(connection: Connection, kind: QuotaKind, name: str, output: str) -> None:
    """Show one quota: what counts against it, and its limits."""
    async with connection.client() as client:
        _print(output, await client.quotas.get(kind, name))


def _print(output: str, quota: pb.Quota) -> None:
    print_one(output, quota, [(column.title.lower(), column.value(quota)) for column in _columns()], quota.name)


@quotas_command.command("set")
@click.option("--slots", multiple=True, callback=options.slots, metavar="SLOT=AMOUNT", help="Limit of slots.")
@click.option("--sessions", type=int, help="Limit of placed sessions.")
@click.option("--pending", type=int, help="Limit of pending sessions.")
@click.option("--system", type=int, help="Limit of a user's system sessions.  [default: 2]")
@click.option("--priority", type=int, help="Highest allowed priority.")
@output_option
@click.argument("kind", type=_KIND)
@click.argument("name")
@pass_connection
@asynchronous
async def set_quota(
    connection: Connection,
    *,
    kind: QuotaKind,
    name: str,
    slots: Mapping[str, str],
    sessions: int | None,
    pending: int | None,
    system: int | None,
    priority: int | None,
    output: str,
) -> None:
    """Set all limits at once; a limit without its option is removed."""
    async with connection.client() as client:
        quota = await client.quotas.set(
            kind,
            name,
            slots=slots,
            max_sessions=sessions,
            max_pending_sessions=pending,
            max_system_sessions=system,
            highest_priority=priority,
        )
    _print(output, quota)
