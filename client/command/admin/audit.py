"""`retinue audit`: what administrators did, what was done with accounts, and what was denied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.shell import options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash
from retinue.client.command.show.output import Column, list_output_option, print_list
from retinue.manager.v1 import account_service_pb2 as pb

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence


@click.group("audit")
def audit_command() -> None:
    """List what administrators did, what was done with accounts, and what was denied."""


@audit_command.command("ls")
@click.option("--user", default="", help="Only calls of this user, agent or router.")
@click.option("--method", default="", help="Only calls of this method, as CreateUser.")
@click.option("--object", "object_", default="", metavar="NAME", help="Only calls on this object.")
@click.option("--code", default="", metavar="CODE", help="Only calls with this code, as OK or PERMISSION_DENIED.")
@click.option(
    "--category", type=click.Choice(["administration", "account", "denial"]), help="Only records of this category."
)
@click.option("--filter", "filter_", default="", metavar="TERMS", help="""Filter, as address = "10.0.0.7".""")
@click.option(
    "--since",
    callback=options.moment,
    metavar="TIME",
    help="Only since this time: 30m, 2h ago, or 2026-01-31T12:00:00Z.",
)
@click.option("--until", callback=options.moment, metavar="TIME", help="Only before this time.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="List at most this many.")
@list_output_option
@pass_connection
@asynchronous
async def list_records(
    connection: Connection,
    *,
    user: str,
    method: str,
    object_: str,
    code: str,
    category: str | None,
    filter_: str,
    since: dt.datetime | None,
    until: dt.datetime | None,
    limit: int,
    output: str,
) -> None:
    """List records, newest first. For administrators.

    A record without a code is of a call that has not ended, or whose manager ended during it: it may have taken effect.
    Equal denied calls within a minute are one record, with their number.
    """
    chosen = {
        "principal": user,
        "method": method,
        "object": object_,
        "code": code.upper(),
        "category": (category or "").upper(),
    }
    terms = [f"{field} = {_quoted(value)}" for field, value in chosen.items() if value]
    text = " AND ".join([*terms, *([filter_] if filter_ else [])])
    async with connection.client() as client:
        records = [record async for record in client.audit.list(filter=text, since=since, until=until, limit=limit)]
    print_list(output, pb.ListAuditRecordsResponse(records=records), records, _columns(), lambda record: record.id)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _columns() -> Sequence[Column[pb.AuditRecord]]:
    return (
        Column("TIME", lambda record: record.create_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%SZ")),
        Column("WHO", _who),
        Column("ADDRESS", lambda record: or_dash(record.address)),
        Column("METHOD", lambda record: safe(record.method.rpartition("/")[2])),
        Column("OBJECT", _object),
        Column("CODE", lambda record: or_dash(record.code)),
        Column("COUNT", lambda record: str(record.count)),
        Column("CATEGORY", lambda record: enum_names.name_of(enum_names.AUDIT_CATEGORY, record.category), wide=True),
        Column("REASON", lambda record: or_dash(record.reason), wide=True),
        Column("SUMMARY", lambda record: or_dash(record.summary), wide=True),
        Column("TOKEN", lambda record: or_dash(record.token_id), wide=True),
        Column("REQUEST", lambda record: or_dash(record.request_id), wide=True),
        Column("MANAGER", lambda record: or_dash(record.manager), wide=True),
    )


def _who(record: pb.AuditRecord) -> str:
    if not record.principal_kind:
        return "-"
    kind = enum_names.name_of(enum_names.AUDIT_PRINCIPAL_KIND, record.principal_kind).lower()
    return f"{kind} {safe(record.principal)}"


def _object(record: pb.AuditRecord) -> str:
    return or_dash(" ".join(filter(None, (record.object_kind, record.object))))
